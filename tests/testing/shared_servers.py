"""Servers that several test files ask: one process of xdist runs all files of such a server."""

import functools
import re
from pathlib import Path

from xdist.scheduler import LoadFileScheduling  # pyright: ignore[reportMissingTypeStubs]

TESTS = Path(__file__).resolve().parents[1]
# Fixtures that start a server once in a process; those on one line have a file in common.
TOGETHER = (
    ("default_server",),
    ("stand_in_server", "keyed_server"),
    ("tiny_server",),
    ("cold_server",),
)


class LoadServers(LoadFileScheduling):
    """Deals out files, and those that share a server at once: it is then started once."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return _shared().get(file, file)


@functools.cache
def _shared() -> dict[str, str]:
    """Return the server of each file that shares one; paths are those of node ids."""
    found: dict[str, str] = {}
    for path in (*TESTS.glob("test_*.py"), *TESTS.glob("end_to_end/test_*.py")):
        text = path.read_text("utf-8")
        for fixtures in TOGETHER:
            if re.search(rf"\b({'|'.join(fixtures)})\b", text):
                found[f"tests/{path.relative_to(TESTS).as_posix()}"] = fixtures[0]
    return found
