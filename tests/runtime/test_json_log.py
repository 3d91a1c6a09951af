"""Every line of a log is one JSON object, whoever wrote it."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from runtime.json_log import JsonFormatter

ROOT = Path(__file__).resolve().parents[2]


def written(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter("api").format(record)
    assert line.isascii()
    assert "\n" not in line
    return json.loads(line)


def record(text: str, *args: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("umbra.x", logging.WARNING, "x.py", 1, text, args, None)
    vars(made).update(more)
    return made


def test_a_line_tells_when_where_and_what() -> None:
    told = written(record("a %s\n\u2028b", "\udc80", created=1.2345, process=7))

    assert told == {
        "time": "1970-01-01T00:00:01.234Z",
        "level": "warning",
        "logger": "umbra.x",
        "process": "api",
        "pid": 7,
        "message": "a \udc80\n\u2028b",
    }


def test_fields_stand_beside_the_message() -> None:
    told = written(record("x", fields={"rid": "r", "ttft_s": None, "path": Path("p")}))

    assert (told["rid"], told["ttft_s"], told["path"]) == ("r", None, "p")


def test_an_exception_is_a_part_of_its_line() -> None:
    try:
        raise ValueError("why")
    except ValueError:
        told = written(record("x", exc_info=sys.exc_info(), stack_info="here"))

    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("ValueError: why")
    assert told["stack"] == "here"


def test_warnings_and_what_nobody_catches_are_lines_too() -> None:
    code = (
        "import logging, threading, warnings; from runtime.child import configure_logging;"
        "configure_logging('info', form='json', process='rank 1'); warnings.warn('careful');"
        "logging.getLogger('umbra.rank').info('ours'); logging.getLogger('other').info('theirs');"
        "thread = threading.Thread(target=lambda: 1 / 0, name='helper'); thread.start();"
        "thread.join(); raise OSError('end')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )

    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "info", "critical", "critical"]
    assert all(line["process"] == "rank 1" for line in lines)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z", line["time"]) for line in lines)
    assert "careful" in lines[0]["message"]
    assert lines[2]["message"] == "uncaught exception in helper"
    assert "ZeroDivisionError" in lines[2]["exception"]
    assert lines[3]["exception"].endswith("OSError: end")
