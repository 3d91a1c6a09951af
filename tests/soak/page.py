"""The report of a soak as one HTML page that needs nothing else: text, and plots as inline SVG."""

from collections.abc import Mapping, Sequence
from html import escape

from tests.soak.history import History, Series

__all__ = ["page", "plot"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 860, 220, 70, 24, 10
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")
_STYLE = (
    "body{font:14px sans-serif;max-width:900px;margin:2em auto;color:#222}"
    "pre{background:#f4f4f4;padding:1em;overflow-x:auto}svg{display:block}"
    "text{font-size:11px;fill:#555}.key span{margin-right:1.2em}"
)


def page(lives: Sequence[tuple[str, str, History]]) -> str:
    """Return the page of lives, each with its title, its report and its history."""
    parts = [
        f"<h2>{escape(title)}</h2><pre>{escape(report)}</pre>{_plots(history)}"
        for title, report, history in lives
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Soak of an Umbra server</title>"
        f"<style>{_STYLE}</style><h1>Soak of an Umbra server</h1>{''.join(parts)}</html>\n"
    )


def _plots(history: History) -> str:
    pools = ("full_pages_free", "tree_pages", "swa_pages_free", "rings_free")
    plots = {
        "Resident memory, MiB": history.memory,
        "Units of the pools": {name: history.gauge(name) for name in pools},
        "Requests": {name: history.gauge(name) for name in ("running", "waiting")},
        "Latency of a call, ms": {
            "p50": history.percentile(0.5),
            "p99": history.percentile(0.99),
        },
        "Share of prompt tokens from the cache": {
            "hit rate": history.ratio("cached_tokens", "prompt_tokens")
        },
        "Tokens a second": {
            name: history.rate(name) for name in ("computed_prompt_tokens", "generation_tokens")
        },
        "Events a second": {
            name: history.rate(name) for name in ("evicted_pages", "retracted_requests")
        },
    }
    return "".join(plot(title, series) for title, series in plots.items())


def plot(title: str, series: Mapping[str, Series]) -> str:
    """Return lines over seconds, with a key; from 0 to what the largest needs."""
    lines = {name: points for name, points in series.items() if points}
    if not lines:
        return f"<h3>{escape(title)}</h3><p>no samples</p>"
    last = max(at for points in lines.values() for at, _ in points) or 1.0
    most = max(value for points in lines.values() for _, value in points) or 1.0
    wide, high = _WIDTH - _LEFT, _HEIGHT - _BOTTOM - _TOP
    drawn: list[str] = []
    for share in (0.0, 0.5, 1.0):
        y = _TOP + high * (1 - share)
        drawn.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH}" stroke="#ddd"/>')
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:,.4g}</text>'
        )
        drawn.append(
            f'<text x="{_LEFT + wide * share * 0.97:.1f}" y="{_HEIGHT - 6}">{last * share:,.0f} s'
            "</text>"
        )
    key: list[str] = []
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        places = " ".join(
            f"{_LEFT + wide * at / last:.1f},{_TOP + high * (1 - value / most):.1f}"
            for at, value in points
        )
        drawn.append(f'<polyline points="{places}" fill="none" stroke="{colour}"/>')
        key.append(f'<span style="color:{colour}">{escape(name)}</span>')
    return (
        f"<h3>{escape(title)}</h3><p class=key>{''.join(key)}</p>"
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img">{"".join(drawn)}</svg>'
    )
