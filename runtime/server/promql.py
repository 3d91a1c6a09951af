"""Queries to Prometheus, of the servers that a Grafana dashboard's variables choose."""

__all__ = [
    "largest",
    "levels",
    "mean",
    "most",
    "now",
    "quantile",
    "rate",
    "rates",
    "ratio",
]

_CHOSEN = '{instance=~"$instance",replica=~"$replica"}'
_RANGE = "[$__rate_interval]"


def now(metric: str, by: str = "") -> str:
    """Return the sum of a gauge over the chosen servers, one for each value of the labels `by`."""
    return f"sum{_by(by)}({metric}{_CHOSEN})"


def rate(metric: str, by: str = "") -> str:
    """Return the rate of a counter in a second, likewise."""
    return f"sum{_by(by)}(rate({metric}{_CHOSEN}{_RANGE}))"


def most(metric: str, by: str = "") -> str:
    """Return the largest value of a gauge, likewise."""
    return f"max{_by(by)}({metric}{_CHOSEN})"


def ratio(part: str, whole: str, by: str = "") -> str:
    """Return the ratio of the rates of two counters, likewise."""
    return f"{rate(part, by)} / {rate(whole, by)}"


def mean(histogram: str, by: str = "") -> str:
    """Return the recent mean of a histogram, likewise."""
    return ratio(f"{histogram}_sum", f"{histogram}_count", by)


def quantile(share: float, histogram: str, by: str = "") -> str:
    """Return the recent quantile `share` of a histogram, likewise."""
    buckets = rate(f"{histogram}_bucket", ", ".join(filter(None, ("le", by))))
    return f"histogram_quantile({share}, {buckets})"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else " "


def rates(**counters: str) -> dict[str, str]:
    """Return queries for what counters grow by; legends are the names, with blanks."""
    return {legend.replace("_", " "): rate(name) for legend, name in counters.items()}


def levels(**gauges: str) -> dict[str, str]:
    """Return queries for sums of gauges, likewise."""
    return {legend.replace("_", " "): now(name) for legend, name in gauges.items()}


def largest(**gauges: str) -> dict[str, str]:
    """Return queries for the largest of each gauge, likewise."""
    return {legend.replace("_", " "): most(name) for legend, name in gauges.items()}
