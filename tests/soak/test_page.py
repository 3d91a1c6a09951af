"""The page of a soak: all series of its plots, nothing from elsewhere."""

from tests.soak.history import History
from tests.soak.page import page, plot


def history() -> History:
    states = [
        {"cached_tokens": 0.0, "prompt_tokens": 0.0, "running": 1.0},
        {"cached_tokens": 30.0, "prompt_tokens": 40.0, "running": 2.0},
        {"cached_tokens": 30.0, "prompt_tokens": 40.0, "running": 0.0},
    ]
    names = ("computed_prompt_tokens", "generation_tokens", "evicted_pages", "retracted_requests")
    return History(
        memory={"API 1": [(0.0, 80.0), (2.0, 90.0)]},
        state=[(float(at), {**dict.fromkeys(names, 0.0), **s}) for at, s in enumerate(states)],
        latencies={"chat": [(k / 10, k / 100) for k in range(1, 101)]},
    )


def test_ratios_rates_and_percentiles_are_of_what_lies_between_samples() -> None:
    found = history()

    assert found.ratio("cached_tokens", "prompt_tokens") == [(1.0, 0.75)]
    assert found.rate("prompt_tokens") == [(1.0, 40.0), (2.0, 0.0)]
    assert found.gauge("running") == [(0.0, 1.0), (1.0, 2.0), (2.0, 0.0)]
    [(_, middle)] = found.percentile(0.5, parts=1)
    assert middle == 510.0


def test_a_plot_has_a_line_for_each_series_that_fits_into_it() -> None:
    text = plot("Memory <MiB>", {"a": [(0.0, 5.0), (10.0, 10.0)], "b": [(0.0, 1.0)], "none": []})

    assert text.count("<polyline") == 2
    assert "Memory &lt;MiB&gt;" in text
    assert 'points="70.0,103.0 860.0,10.0"' in text
    assert plot("x", {"none": []}).endswith("no samples</p>")


def test_a_page_loads_nothing() -> None:
    text = page([("checked", "10 calls & more", history())])

    assert "10 calls &amp; more" in text
    assert text.count("<svg") == 6
    for outside in ("http", "src=", "<script", "<link", "url("):
        assert outside not in text
