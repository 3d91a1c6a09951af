"""Log lines as JSON, for programs that read logs: one object a line."""

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal

__all__ = ["JsonFormatter", "LogFormat", "log_json"]

LogFormat = Literal["text", "json"]

logger = logging.getLogger("umbra")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object.

    Keys: time (RFC 3339, UTC, milliseconds), level, logger, process (its part in the server), pid,
    message; exception and stack where there is one; and what the caller gives as
    `extra={"fields": {...}}`: values that JSON has, under other names.
    """

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end; it is ASCII."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "pid": record.process,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, default=str)


def log_json(process: str) -> None:
    """Have the root logger's handlers write JSON; log warnings and uncaught exceptions, too.

    process  the part of this process in the server
    """
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter(process))
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_uncaught_in_thread


def _log_uncaught(
    kind: type[BaseException], fault: BaseException, trace: TracebackType | None
) -> None:
    logger.critical("uncaught exception", exc_info=(kind, fault, trace))


def _log_uncaught_in_thread(told: threading.ExceptHookArgs) -> None:
    fault = told.exc_value or told.exc_type()
    name = "a thread" if told.thread is None else told.thread.name
    trace = (told.exc_type, fault, told.exc_traceback)
    logger.critical("uncaught exception in %s", name, exc_info=trace)
