"""Rows and waits of each share for Prometheus: of each API key by its name, never by the key."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from runtime.share import ADDRESS_MARK, ShareState

__all__ = ["share_metrics"]

# What shares without a key go by: /metrics is open, and shows no address.
_ADDRESSES, _OTHERS = "(addresses)", "(default)"


def share_metrics(shares: Mapping[str, ShareState], labels: Mapping[str, str]) -> Iterable[Metric]:
    """Yield one metric family for each value, with the label `share`."""
    names, values = [*labels, "share"], list(labels.values())
    waiting = GaugeMetricFamily(
        "umbra:share_waiting_reqs", "Requests of a share that wait for a row", labels=names
    )
    running = GaugeMetricFamily(
        "umbra:share_running_reqs", "Requests of a share that hold a row", labels=names
    )
    started = CounterMetricFamily(
        "umbra:share_started_requests", "Requests of a share that have got a row", labels=names
    )
    waited = CounterMetricFamily(
        "umbra:share_wait_seconds", "Seconds that these waited for it", labels=names
    )
    for name, state in shares.items():
        label = {ADDRESS_MARK: _ADDRESSES, "": _OTHERS}.get(name, name)
        waiting.add_metric([*values, label], state.waiting)
        running.add_metric([*values, label], state.running)
        started.add_metric([*values, label], state.started)
        waited.add_metric([*values, label], state.wait_s)
    yield from (waiting, running, started, waited)
