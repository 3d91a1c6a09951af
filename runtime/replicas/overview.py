"""Operations on all replicas at once, and facts of all of them in one reply."""

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response

from runtime.replicas.board import Board
from runtime.replicas.fleet import Fleet, Reply, fetch
from runtime.replicas.merged_metrics import merge_metrics
from runtime.replicas.upstream import HttpRequest
from runtime.server.metrics import CONTENT_TYPE

__all__ = ["EVERYWHERE", "Overview"]

# Operations that every replica carries out.
_TO_ALL = (
    *("/flush_cache", "/abort_request", "/start_profile", "/stop_profile"),
    *("/v1/loads", "/get_load", "/metrics"),
)
EVERYWHERE = frozenset(_TO_ALL)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Umbra: replicas</title>
<meta http-equiv="refresh" content="2">
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; }
td, th { padding: .2rem 1rem; text-align: right; }
td:first-child, th:first-child { text-align: left; }
</style></head><body><h1>Replicas</h1>
<table><tr><th>cache of</th><th>requests in flight</th><th>prompt tokens to compute</th>
<th>served</th><th>pages cached</th><th>cache known</th></tr>
"""


class Overview:
    """Replies that are made of those of all replicas."""

    def __init__(self, fleet: Fleet, board: Board) -> None:
        self._fleet = fleet
        self._board = board

    async def ask_all(self, request: HttpRequest) -> list[Reply]:
        """Return the reply of each replica, one after the other."""
        names = list(self._fleet.names())
        return [await fetch(self._fleet, replace(request, replica=name)) for name in names]

    async def everywhere(self, request: HttpRequest) -> Response:
        """Return one reply for a path in `EVERYWHERE`."""
        path = request.path.partition("?")[0]
        replies = await self.ask_all(request)
        if path == "/metrics":
            return self._metrics(replies)
        if failed := [reply for reply in replies if not 200 <= reply.status < 300]:
            worst = failed[0]
            return Response(worst.body, worst.status or 503, media_type=worst.media_type)
        return _MERGED.get(path, _by_name)(replies)

    def _metrics(self, replies: Sequence[Reply]) -> Response:
        texts = {r.replica: r.body.decode(errors="replace") for r in replies if r.status == 200}
        text = merge_metrics(texts) + self._own_metrics()
        return Response(text, media_type=CONTENT_TYPE)

    def _own_metrics(self) -> str:
        gauges = {
            "requests": "Requests in flight to the replica.",
            "waiting_tokens": "Prompt tokens of these requests that are still to be computed.",
            "blocks": "Cached pages of the replica that the front knows of.",
            "current": "1 while the front's index of the replica's cache is exact.",
        }
        known = self._board.describe()
        lines: list[str] = []
        for key, text in gauges.items():
            name = f"umbra_front_{key}"
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
            lines += [f'{name}{{replica="{one}"}} {int(v[key])}' for one, v in known.items()]
        name = "umbra_front_served_total"
        lines += [f"# HELP {name} Requests sent to the replica.", f"# TYPE {name} counter"]
        lines += [f'{name}{{replica="{one}"}} {v["served"]}' for one, v in known.items()]
        return "\n".join([*lines, ""])

    def describe(self) -> Response:
        """Return what is known of each replica as JSON."""
        return _json({"replicas": self._board.describe()})

    def page(self) -> Response:
        """Return a page with a row for each replica; its name leads to its cache."""
        rows: list[str] = []
        for name, view in self._board.describe().items():
            shown = html.escape(name)
            cells = [f'<a href="replicas/{shown}/">{shown}</a>']
            cells += [str(view[key]) for key in ("requests", "waiting_tokens", "served", "blocks")]
            cells.append("yes" if view["current"] else "no")
            rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>\n")
        policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
        return HTMLResponse(
            _PAGE + "".join(rows) + "</table></body></html>\n",
            headers={"Content-Security-Policy": policy, "Cache-Control": "no-store"},
        )


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _by_name(replies: Sequence[Reply]) -> Response:
    """Return the replies under the replicas' names."""
    return _json({"replicas": {reply.replica: reply.json() for reply in replies}})


def _aborted(replies: Sequence[Reply]) -> Response:
    counts = [_field(reply.json(), "aborted") for reply in replies]
    return _json({"aborted": sum(count for count in counts if isinstance(count, int))})


def _flushed(replies: Sequence[Reply]) -> Response:
    text = "".join(f"{r.replica}: {r.body.decode(errors='replace').strip()}\n" for r in replies)
    return Response(text, media_type="text/plain")


def _loads(replies: Sequence[Reply]) -> Response:
    """Return `/v1/loads` with the entries of all, each with its replica's name."""
    first = replies[0].json() if replies else None
    entries = [
        {**entry, "replica": reply.replica}
        for reply in replies
        for entry in _list(_field(reply.json(), "loads"))
    ]
    return _json({**(first if isinstance(first, dict) else {}), "loads": entries})


def _old_loads(replies: Sequence[Reply]) -> Response:
    return _json([{**e, "replica": r.replica} for r in replies for e in _list(r.json())])


def _field(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, Mapping) else None


def _list(value: object) -> list[dict[str, Any]]:
    return [e for e in value if isinstance(e, dict)] if isinstance(value, list) else []


_MERGED: dict[str, Callable[[Sequence[Reply]], Response]] = {
    "/abort_request": _aborted,
    "/flush_cache": _flushed,
    "/v1/loads": _loads,
    "/get_load": _old_loads,
}
