"""Compiles a few C files into a library at first use, and keeps it for later ones.

The library is plain C, loaded through ctypes: a C compiler (`cc`, or what `CC` names) is all that
it takes, no Python headers. It lies in `~/.cache/umbra/native` under a name that depends on the
sources, the compiler's version and the flags, so that a change of any of them builds anew.
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from jit_kernels.registry import BackendUnavailable

FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra")


def load(name: str, folder: Path) -> ctypes.CDLL:
    """Return the library of all `*.c` in `folder`, compiled now unless that was done before.

    Raises BackendUnavailable, with the compiler's own words, if there is no compiler or it fails.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        raise BackendUnavailable(
            f"{name} is compiled at first use and there is no C compiler '{compiler[0]}': "
            "install one (Debian: apt install gcc), or name one in CC"
        )
    sources = sorted(folder.glob("*.c"))
    target = _cache_folder() / f"{name}-{_digest(compiler, folder)}.so"
    if not target.exists():
        _make_folder(target.parent)
        _compile([*compiler, *FLAGS], sources, target)
    return ctypes.CDLL(str(target))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BackendUnavailable(
            f"no folder for compiled files: {error}; name one in XDG_CACHE_HOME"
        ) from error


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "umbra" / "native"


def _digest(compiler: list[str], folder: Path) -> str:
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(version + shlex.join([*compiler, *FLAGS]).encode())
    for path in sorted(folder.glob("*.[ch]")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(command: list[str], sources: list[Path], target: Path) -> None:
    """Compile into a file of our own and move it into place: others may be doing the same."""
    handle, scratch = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    try:
        made = subprocess.run(
            [*command, "-o", scratch, *map(str, sources)], capture_output=True, check=False
        )
        if made.returncode:
            said = made.stderr.decode(errors="replace").strip()
            raise BackendUnavailable(f"{shlex.join(command)} failed on {target.stem}:\n{said}")
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)
