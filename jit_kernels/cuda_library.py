"""Compiles the CUDA C++ of an op into a library at first use, and keeps it for later ones.

The library is loaded through ctypes: nvcc is all that it takes. It lies beside what
`host_library` compiles, under a name that depends on the sources, the compiler and the device. All
sources may include the headers of `device`, what kernels of several ops are made of, by that name.
"""

import ctypes
import hashlib
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from jit_kernels.cuda_device import nvcc
from jit_kernels.host_library import cache_folder, compile_once, opened
from jit_kernels.registry import BackendUnavailable

_FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")
_OPS = Path(__file__).parent
_HEADERS = Path(__file__).parent / "device"


def load(name: str, folder: Path) -> ctypes.CDLL:
    """Return the library of all `*.cu` in `folder` for the current device, compiled if need be.

    name  of the op, for messages

    Raises BackendUnavailable, with the compiler's own words, if there is no compiler or it fails.
    """
    compiler = nvcc()
    if compiler is None:
        raise BackendUnavailable(f"{name} is compiled at first use and there is no nvcc")
    return opened(name, _made([compiler, *_FLAGS, _target(_capability())], folder))


def compile_all() -> list[str]:
    """Compile what is not yet compiled for the current device, side by side.

    A library takes seconds, and one after another all of them most of a minute. Returns what the
    compiler said of those that failed, which is said again by whoever loads them; no compiler: it
    does nothing.
    """
    compiler = nvcc()
    if compiler is None:
        return []
    command = [compiler, *_FLAGS, _target(_capability())]

    def fault(folder: Path) -> str:
        try:
            _made(command, folder)
        except BackendUnavailable as reason:
            return str(reason)
        return ""

    folders = sorted({source.parent for source in _OPS.glob("*/*/*.cu")})
    with ThreadPoolExecutor(len(folders) or 1) as threads:
        return [said for said in threads.map(fault, folders) if said]


def _made(command: list[str], folder: Path) -> Path:
    """Return the library of a folder, compiled by `command` unless it is there."""
    name = f"{folder.parent.name}-{folder.name}-{_digest(command, folder)}.so"
    place = cache_folder() / name
    sources = sorted(folder.glob("*.cu"))
    compile_once(place, command, [f"-I{_HEADERS.parent}", *map(str, sources)])
    return place


def _capability() -> tuple[int, int]:
    return torch.cuda.get_device_capability()


def _target(capability: tuple[int, int]) -> str:
    """Return the flag for a device; `a` on Hopper and later, for instructions of its own."""
    number = f"{capability[0]}{capability[1]}" + ("a" if capability[0] >= 9 else "")
    return f"-gencode=arch=compute_{number},code=sm_{number}"


def _digest(command: list[str], folder: Path) -> str:
    version = subprocess.run([command[0], "--version"], capture_output=True, check=False).stdout
    digest = hashlib.sha256(version + "\0".join(command).encode())
    for path in [*sorted(folder.glob("*.cu*")), *sorted(_HEADERS.glob("*.cuh"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
