"""Compiles a few C files into a library at first use, and keeps it for later ones.

The library is plain C, loaded through ctypes: a C compiler (`cc`, or what `CC` names) is all that
it takes, no Python headers. It lies in `~/.cache/umbra/native` under a name that depends on the
sources, the flags, and what the compiler says of itself and of this processor, so that a change
of any of them builds anew. So the compiler is asked each time, and must stay.
"""

import contextlib
import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from jit_kernels.compile_lock import alone
from jit_kernels.registry import BackendUnavailable

FLAGS = ("-std=c11", "-O3", "-fPIC", "-shared", "-Wall", "-Wextra")


def load(
    name: str, folder: Path, *, sources: str = "*.c", flags: tuple[str, ...] = ()
) -> ctypes.CDLL:
    """Return the library of C files in `folder`, compiled now unless that was done before.

    sources  which files, as a pattern; all `*.[ch]` in and below `folder` count as read by them
    flags    of the compiler, besides `FLAGS`
    Raises BackendUnavailable, with the compiler's own words, if there is no compiler or it fails,
    and where its folder takes no files or its files may not be run.
    """
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(compiler[0]) is None:
        raise BackendUnavailable(
            f"{name} is compiled at first use and there is no C compiler '{compiler[0]}': "
            "install one (Debian: apt install gcc), or name one in CC"
        )
    command = [*compiler, *FLAGS, *flags]
    target = cache_folder() / f"{name}-{_digest(command, folder)}.so"
    compile_once(target, command, [*map(str, sorted(folder.glob(sources))), "-lm"])
    return opened(name, target)


def opened(name: str, library: Path) -> ctypes.CDLL:
    """Return a compiled library. Raises BackendUnavailable if it cannot be loaded."""
    try:
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise BackendUnavailable(
            f"{name} cannot be loaded: {error}; remove {library} if it is damaged, or name a "
            "folder whose files may be run in XDG_CACHE_HOME"
        ) from error


def cache_folder() -> Path:
    """Return where compiled libraries lie. Raises BackendUnavailable for a user without a home."""
    try:
        root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError as error:
        raise BackendUnavailable(
            f"no folder for compiled files: {error} Name one in XDG_CACHE_HOME"
        ) from error
    return Path(root) / "umbra" / "native"


def _digest(command: list[str], folder: Path) -> str:
    # The macros tell the compiler's version, and with -march=native what the processor can do.
    ask = [*command, "-dM", "-E", "-x", "c", os.devnull]
    macros = subprocess.run(ask, capture_output=True, check=False).stdout
    digest = hashlib.sha256(macros + shlex.join(command).encode())
    for path in sorted(folder.rglob("*.[ch]")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def compile_once(target: Path, command: list[str], inputs: list[str]) -> None:
    """Have a library made unless it is there, by one of the processes that want it; see below."""
    # Of a folder that may not be searched `Path.exists` raises.
    if os.path.exists(target):
        return
    # Where the folder cannot be made, the compiler's turn says why.
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
    with alone(target.with_suffix(".lock"), target.stem):
        if not os.path.exists(target):
            compile_into(target, command, inputs)


def compile_into(target: Path, command: list[str], inputs: list[str]) -> None:
    """Have `command` make a library of what it is given, and put it where it shall lie.

    It is made in a file of our own and moved into place: others may be doing the same. Raises
    BackendUnavailable, with the compiler's own words, and where the folder takes no files.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=target.parent, suffix=".so")
    except OSError as error:
        raise BackendUnavailable(
            f"no folder for compiled files: {error}; name one in XDG_CACHE_HOME"
        ) from error
    os.close(handle)
    try:
        made = subprocess.run([*command, "-o", scratch, *inputs], capture_output=True, check=False)
        if made.returncode:
            said = (made.stderr or made.stdout).decode(errors="replace").strip()
            raise BackendUnavailable(f"{shlex.join(command)} failed on {target.stem}:\n{said}")
        # Else its name may outlive a loss of power, and its bytes not.
        with open(scratch, "rb") as library:
            os.fsync(library.fileno())
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)
