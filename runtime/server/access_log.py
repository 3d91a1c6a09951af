"""The access log: one line a request, written by uvicorn when the reply begins.

A line has the path alone. Keys and salts may stand in a query.
"""

import logging
from collections.abc import Sequence

LOGGER = "uvicorn.access"


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
