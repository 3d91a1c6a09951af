"""Compiles the CUDA C++ of an op into a library at first use, and keeps it for later ones.

The library is loaded through ctypes: nvcc is all that it takes. It lies beside what
`host_library` compiles, under a name that depends on the sources, the compiler and the device.
"""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch

from jit_kernels.cuda_device import nvcc
from jit_kernels.registry import BackendUnavailable

_FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")


def load(name: str, folder: Path) -> ctypes.CDLL:
    """Return the library of all `*.cu` in `folder` for the current device, compiled if need be.

    Raises BackendUnavailable, with the compiler's own words, if there is no compiler or it fails.
    """
    compiler = nvcc()
    if compiler is None:
        raise BackendUnavailable(f"{name} is compiled at first use and there is no nvcc")
    command = [compiler, *_FLAGS, _target(torch.cuda.get_device_capability())]
    place = _cache_folder() / f"{name}-{_digest(command, folder)}.so"
    if not place.exists():
        _compile(command, sorted(folder.glob("*.cu")), place)
    return ctypes.CDLL(str(place))


def _target(capability: tuple[int, int]) -> str:
    """Return the flag for a device; `a` on Hopper and later, for instructions of its own."""
    number = f"{capability[0]}{capability[1]}" + ("a" if capability[0] >= 9 else "")
    return f"-gencode=arch=compute_{number},code=sm_{number}"


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "umbra" / "native"


def _digest(command: list[str], folder: Path) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(version + "\0".join(command).encode())
    for path in sorted(folder.glob("*.cu*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(command: list[str], sources: list[Path], target: Path) -> None:
    """Compile into a file of our own and move it into place: others may be doing the same."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=target.parent, suffix=".so")
    except OSError as error:
        raise BackendUnavailable(
            f"no folder for compiled files: {error}; name one in XDG_CACHE_HOME"
        ) from error
    os.close(handle)
    try:
        made = subprocess.run(
            [*command, "-o", scratch, *map(str, sources)], capture_output=True, check=False
        )
        if made.returncode:
            said = (made.stderr or made.stdout).decode(errors="replace").strip()
            raise BackendUnavailable(f"{' '.join(command)} failed on {target.stem}:\n{said}")
        os.replace(scratch, target)
    finally:
        Path(scratch).unlink(missing_ok=True)
