"""Engines whose scheduler is a stand-in that counts: no model, no torch, real processes."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.engine.engine import Engine
from tests.runtime.tokenizer.samples import byte_tokenizer, write_checkpoint

DEADLINE_S = 60.0
COUNT: dict[str, Any] = {"max_new_tokens": 3}


def checkpoint(folder: Path) -> Path:
    """Make `folder` look like a checkpoint from the outside, and return it."""
    (folder / "config.json").write_text("{}")
    return write_checkpoint(folder, byte_tokenizer())


@contextlib.contextmanager
def counting_engine(folder: Path, main: str = "steady", **flags: Any) -> Iterator[Engine]:
    """Start an engine on a stand-in, and end it."""
    engine = Engine(
        model_path=str(checkpoint(folder)),
        scheduler_main=f"tests.runtime.stand_ins:{main}",
        **flags,
    )
    try:
        yield engine
    finally:
        engine.shutdown()


def scheduler_of(engine: Engine) -> int:
    """Return the process id of an engine's stand-in."""
    return int(engine.server_info()["pid"])


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
