"""Where traces of steps are written: files of clear names below one folder, and nowhere else."""

import gzip
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["TraceFolder", "write_trace"]

# Of gzip: higher ones take longer than they save, and serving waits for the cores.
_LEVEL = 3
_COPIED_BYTES = 1 << 20


class TraceFolder:
    """A folder that the operator named; clients may name folders below it."""

    def __init__(self, root: str, *, rank: int | None = None) -> None:
        """Make the folder if it is not there. Raises OSError, ValueError where that fails.

        rank  stands in the names of files; None: the network has one rank
        """
        Path(root).mkdir(parents=True, exist_ok=True)
        self._root = Path(root).resolve()
        self._count = 0
        self._mark = "" if rank is None else f"-rank{rank}"

    def new_file(self, below: str) -> Path:
        """Return the path of a trace that is not there yet, and make its folder.

        below  a folder inside this one, absolute or relative to it; "" is this one
        Raises ValueError for a folder elsewhere, links followed, OSError where none can be made.
        """
        try:
            folder = (self._root / below).resolve()
        except RuntimeError as fault:  # links in a circle
            raise ValueError(str(fault)) from fault
        if not folder.is_relative_to(self._root):
            raise ValueError("it is not below the folder of --profile-dir")
        folder.mkdir(parents=True, exist_ok=True)
        self._count += 1
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        return folder / f"umbra-{stamp}-{os.getpid()}-{self._count}{self._mark}.trace.json.gz"


def write_trace(export: Callable[[str], None], file: Path) -> None:
    """Have `export` write JSON to the path it is given, and pack that into `file`.

    `file` appears when it is whole, or not at all. Raises OSError, and what `export` raises.
    """
    plain = file.with_name(f".{file.name}.json")
    packed = file.with_name(f".{file.name}.part")
    try:
        export(str(plain))
        with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=_LEVEL) as target:
            shutil.copyfileobj(source, target, _COPIED_BYTES)
        packed.replace(file)
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
