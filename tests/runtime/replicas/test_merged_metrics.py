"""Merged metrics are metrics, and each sample tells whose it is."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from runtime.replicas.merged_metrics import merge_metrics


def metrics(value: float, *, label: str = 'a}b"c\\') -> str:
    registry = CollectorRegistry()
    Counter("umbra_requests", "Requests.", ["model"], registry=registry).labels(label).inc(value)
    Histogram("umbra_ttft", "Seconds.", buckets=(1, 2), registry=registry).observe(value)
    Gauge("umbra_load", "Load.", registry=registry).set(value)
    return generate_latest(registry).decode()


def test_samples_of_all_stand_together_with_their_labels() -> None:
    texts = {"one": metrics(1), "two": metrics(2)}

    merged = merge_metrics(texts)

    families = list(text_string_to_metric_families(merged))
    assert len({family.name for family in families}) == len(families)
    for replica, text in texts.items():
        found = {
            (s.name, tuple(sorted((k, v) for k, v in s.labels.items() if k != "replica"))): s.value
            for family in families
            for s in family.samples
            if s.labels["replica"] == replica
        }
        alone = {
            (s.name, tuple(sorted(s.labels.items()))): s.value
            for family in text_string_to_metric_families(text)
            for s in family.samples
        }
        assert found == alone
    assert {f.name: f.type for f in families}["umbra_ttft"] == "histogram"
    assert merged.count("# TYPE umbra_load gauge") == 1


def test_a_metric_that_only_one_has_is_kept() -> None:
    merged = merge_metrics({"one": "", "two": "# HELP x X.\n# TYPE x gauge\nx 1 1700000000\ny 2\n"})

    assert merged.splitlines() == [
        "# HELP x X.",
        "# TYPE x gauge",
        'x{replica="two"} 1 1700000000',
        'y{replica="two"} 2',
    ]
    assert merge_metrics({}) == ""
