"""A folder for sockets: only this user can enter it, and it does not outlive its process for long.

A process that is killed cannot remove its folder: the next one does. It knows by a lock that the
owner of a folder holds for as long as it lives.
"""

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from runtime.errors import RuntimeFault

__all__ = ["private_folder"]

_PREFIX = "umbra-"
_CLAIM = "claim"
# An owner that was killed before it could claim its folder, or while the folder was removed.
_UNCLAIMED_S = 60.0


@contextlib.contextmanager
def private_folder(longest: int) -> Iterator[str]:
    """Make a folder, and remove it at the end; remove those that killed processes left.

    longest  bytes that its path may have; where TMPDIR is longer it is made in /tmp
    Raises RuntimeFault where no temporary folder can be written.
    """
    try:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        if len(folder) > longest:
            Path(folder).rmdir()
            folder = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")
        claim = _claimed(Path(folder))
    except OSError as fault:
        raise RuntimeFault(f"no folder for sockets: {fault}; name one in TMPDIR") from fault
    with claim:
        _remove_abandoned(Path(folder).parent)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _claimed(folder: Path) -> IO[bytes]:
    """Return the locked file that says whose folder this is."""
    partial = folder / f".{_CLAIM}"
    claim = partial.open("wb")
    # Some file systems have no locks: then nobody can tell that the owner is gone.
    with contextlib.suppress(OSError):
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Found only now: before, whoever looks would take it for abandoned.
        partial.rename(folder / _CLAIM)
    return claim


def _remove_abandoned(root: Path) -> None:
    """Remove this user's folders whose owners are gone."""
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                _remove_unclaimed(folder)
    for claim in root.glob(f"{_PREFIX}*/{_CLAIM}"):
        with contextlib.suppress(OSError):
            if claim.parent.is_symlink() or claim.parent.stat().st_uid != os.getuid():
                continue
            with claim.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(claim.parent, ignore_errors=True)


def _remove_unclaimed(folder: Path) -> None:
    """Remove an old folder that nobody has claimed, if there is nothing in it but dead sockets."""
    if time.time() - folder.stat().st_mtime < _UNCLAIMED_S or (folder / _CLAIM).exists():
        return
    items = [item for item in folder.iterdir() if item.name != f".{_CLAIM}"]
    if all(_is_dead_socket(item) for item in items):
        shutil.rmtree(folder, ignore_errors=True)


def _is_dead_socket(path: Path) -> bool:
    """Whether this is a socket on which nobody listens."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False
