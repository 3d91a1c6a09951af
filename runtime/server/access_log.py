"""The access log: one line a request.

As text uvicorn writes it when the reply begins; as JSON this module does when the reply has ended,
with tokens and times. A line has the path alone. Keys and salts may stand in a query.
"""

import logging
from collections.abc import Callable, Sequence

from runtime.server.request_record import RequestRecord

LOGGER = "uvicorn.access"
JSON_LOGGER = "umbra.access"


class LeaveOut(logging.Filter):
    """Drops lines of paths that begin with one of `prefixes`."""

    def __init__(self, prefixes: Sequence[str]) -> None:
        super().__init__()
        self._prefixes = tuple(prefixes)

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether the line is written; uvicorn's arguments are (client, method, path, ...)."""
        match record.args:
            case (_, _, str(path), *_):
                return not path.startswith(self._prefixes)
            case _:
                return True


class LeaveOutQuery(logging.Filter):
    """Cuts the query off each line's path."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the line's arguments, and have it written."""
        match record.args:
            case (client, method, str(path), *rest):
                record.args = (client, method, path.partition("?")[0], *rest)
            case _:
                pass
        return True


def open_access_log(level: str, *, leave_out: Sequence[str] = ()) -> None:
    """Write lines where `level` is info or less; to be called once uvicorn has set its levels."""
    logger = logging.getLogger(LOGGER)
    logger.setLevel(level.upper())
    for old in [one for one in logger.filters if isinstance(one, LeaveOut | LeaveOutQuery)]:
        logger.removeFilter(old)
    logger.addFilter(LeaveOutQuery())
    if leave_out:
        logger.addFilter(LeaveOut(leave_out))


class AccessFields:
    """Logs each request with its fields once its reply has ended.

    leave_out  beginnings of paths that have no line
    """

    def __init__(self, level: str, *, leave_out: Sequence[str] = ()) -> None:
        self._logger = logging.getLogger(JSON_LOGGER)
        self._logger.setLevel(level.upper())
        self._leave_out = tuple(leave_out)

    def watch(self, record: RequestRecord) -> Callable[[], None] | None:
        """Return what logs the request; None where it has no line."""
        if not self._logger.isEnabledFor(logging.INFO):
            return None
        if record.scope["path"].startswith(self._leave_out):
            return None
        return lambda: self._log(record)

    def _log(self, record: RequestRecord) -> None:
        scope = record.scope
        host, port = scope.get("client") or ("", 0)
        fields = {
            "rid": record.rid,
            "client": f"{host}:{port}",
            "method": scope["method"],
            "path": scope["path"],
            "status": record.status,
            "duration_s": round(record.ended_s - record.started_s, 6),
        }
        if record.calls:
            ttft_s = record.ttft_s
            fields |= {
                "ttft_s": None if ttft_s is None else round(ttft_s, 6),
                "prompt_tokens": record.prompt_tokens,
                "cached_tokens": record.cached_tokens,
                "output_tokens": record.output_tokens,
                "finish_reasons": [choice.reason for choice in record.choices],
            }
        told = (fields["client"], scope["method"], scope["path"], record.status)
        self._logger.info('%s - "%s %s" %s', *told, extra={"fields": fields})
