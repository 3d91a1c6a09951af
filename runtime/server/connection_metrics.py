"""Metrics of connections: how many are open and were closed, and bytes not read yet."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.server.open_connections import OpenConnections
from runtime.server.unread_replies import UnreadReplies

__all__ = ["ConnectionCollector"]


class ConnectionCollector(Collector):
    """Exposes the connections of a server."""

    def __init__(
        self, model_name: str, connections: OpenConnections, unread: UnreadReplies
    ) -> None:
        self._labels = [model_name]
        self._connections = connections
        self._unread = unread

    def collect(self) -> Iterable[Metric]:
        """Yield gauges, and how many connections the server itself has closed."""
        names = ["model_name"]
        opened = GaugeMetricFamily("umbra:connections_open", "Open connections", labels=names)
        opened.add_metric(self._labels, self._connections.count)
        unread = GaugeMetricFamily(
            "umbra:unread_reply_bytes", "Bytes of replies whose clients do not read", labels=names
        )
        unread.add_metric(self._labels, self._unread.total_bytes)
        closed = CounterMetricFamily(
            "umbra:connections_closed",
            "Connections closed for a new one (idle), or as the client did not read (unread)",
            labels=[*names, "reason"],
        )
        closed.add_metric([*self._labels, "idle"], self._connections.closed_for_others)
        closed.add_metric([*self._labels, "unread"], self._unread.ended)
        return opened, unread, closed
