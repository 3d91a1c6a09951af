"""Compiles side by side what DeepGEMM would compile one after another, each when it is met first.

DeepGEMM has no way to say what it would compile. So a process makes the calls with a compiler that
notes its arguments and hands out an empty kernel, in a cache of its own. That cache then holds an
entry for each kernel, under the name that DeepGEMM looks for; with the kernel compiled it becomes
an entry of the cache that the server reads. DeepGEMM 0.1 and 0.2 name their compiler, lay out
entries, and publish them whole by renaming a folder alike.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import torch

from jit_kernels.compile_lock import alone
from jit_kernels.cuda_device import nvcc
from jit_kernels.host_library import cache_folder
from jit_kernels.kernel_recorder import LIMIT_S
from jit_kernels.vendor_calls import VendorCalls, to_json

__all__ = ["compile_ahead", "name_folder"]

_FOLDER, _COMPILER = "DG_JIT_CACHE_DIR", "DG_JIT_NVCC_COMPILER"
# A compiler takes some 5 s and a gigabyte.
_MOST_AT_ONCE = 16
_COMPILER_LIMIT_S = 300
_POLL_S = 0.1
_EMPTY = 'extern "C" __global__ void empty() {}\n'
_STAND_IN = """#!/bin/sh
[ "$1" = --version ] && exec {compiler} --version
for word in "$@"; do
    case $last in -o | --output-file) out=$word ;; esac
    last=$word
done
case $out in *.cubin) printf '%s\\n' "$@" > "${{out%/*}}/{command}" ;; esac
cp {empty} "$out"
"""
_COMMAND, _CUBIN = "command", "kernel.cubin"


class _Fault(Exception):
    """Why there are no kernels, or one less."""


def name_folder() -> None:
    """Have DeepGEMM keep kernels beside those of the project, unless the environment says where."""
    if not os.environ.get(_FOLDER):
        os.environ[_FOLDER] = str(cache_folder().parent / "deep_gemm")


def compile_ahead(
    calls: Sequence[VendorCalls],
    device: torch.device,
    *,
    stop: Event,
    tell: Callable[[str], None],
) -> list[str]:
    """Compile what the calls take and is not there yet, side by side; once for all later starts.

    stop  set: what is under way is ended
    tell  hears that there is something to compile, and that it is done

    Returns what went wrong: what is missing is compiled when it is met. Without a compiler it does
    nothing, and whoever meets a kernel says so. `name_folder` was called before.
    """
    compiler = os.environ.get(_COMPILER) or nvcc()
    if not calls or compiler is None:
        return []
    try:
        return _Cache(compiler, device, stop, tell).fill(calls)
    except (_Fault, OSError, ValueError) as error:
        return [f"Kernels of DeepGEMM that are missing are compiled one after another: {error}"]


class _Cache:
    """DeepGEMM's kernels on disk; the first of its folders is the one that is written."""

    def __init__(
        self, compiler: str, device: torch.device, stop: Event, tell: Callable[[str], None]
    ) -> None:
        self._compiler, self._device, self._stop, self._tell = compiler, device, stop, tell
        self._folders = [Path(name).absolute() for name in os.environ[_FOLDER].split(":")]

    def fill(self, calls: Sequence[VendorCalls]) -> list[str]:
        """Compile what is missing; return what went wrong."""
        text = to_json(calls)
        done = self._folders[0] / "ahead" / self._digest(text)
        if self._complete(done):
            return []
        done.parent.mkdir(parents=True, exist_ok=True)
        with self._turn(), tempfile.TemporaryDirectory(dir=done.parent) as scratch:
            # Another server may have done it while this one waited.
            if self._complete(done):
                return []
            faults = self._record(text, Path(scratch))
            entries = sorted(Path(scratch, "cache").glob("*.*"))
            faults += self._compile([entry for entry in entries if not self._has(entry.name)])
            if not faults:
                with Path(scratch, "done").open("w", encoding="utf-8") as partial:
                    partial.write("\n".join(entry.name for entry in entries))
                    partial.flush()
                    os.fsync(partial.fileno())
                os.replace(partial.name, done)
        return faults

    def _digest(self, text: str) -> str:
        """Return what changes with the calls, the compiler, the device or the library."""
        version = self._run([self._compiler, "--version"])
        library = importlib.util.find_spec("deep_gemm")
        files = (
            sorted(Path(library.origin).parent.glob("*.*")) if library and library.origin else []
        )
        stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        facts = [text, version, self._compiler, stats, *_device_facts(self._device)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def _complete(self, done: Path) -> bool:
        """Say whether all was compiled before, and is still there."""
        return done.is_file() and all(map(self._has, done.read_text("utf-8").split()))

    def _has(self, name: str) -> bool:
        return any((folder / "cache" / name).exists() for folder in self._folders)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Let servers that start together take turns; the second finds what the first compiled."""
        lock = self._folders[0] / "ahead" / "lock"
        with alone(lock, "kernels of DeepGEMM", stopped=self._stop.is_set):
            if self._stop.is_set():
                raise _Fault("stopped")
            yield

    def _record(self, text: str, scratch: Path) -> list[str]:
        """Have all entries made in `scratch`, empty; return what went wrong."""
        empty, stand_in, report = scratch / "empty.cu", scratch / "nvcc", scratch / "faults"
        empty.write_text(_EMPTY, encoding="utf-8")
        cubin = empty.with_suffix(".cubin")
        number, *_ = _device_facts(self._device)
        target = f"-arch=sm_{number}a"
        self._run([self._compiler, "-cubin", target, "-o", str(cubin), str(empty)])
        stand_in.write_text(
            _STAND_IN.format(
                compiler=shlex.quote(self._compiler),
                command=_COMMAND,
                empty=shlex.quote(str(cubin)),
            ),
            encoding="utf-8",
        )
        stand_in.chmod(0o755)
        environment = {
            **os.environ,
            _FOLDER: str(scratch),
            _COMPILER: str(stand_in),
            "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        }
        module = [sys.executable, "-P", "-m", "jit_kernels.kernel_recorder"]
        self._run(
            [*module, str(self._device), str(report)],
            text,
            environment=environment,
            limit_s=LIMIT_S,
        )
        return [f"DeepGEMM, asked for kernels: {fault}" for fault in json.loads(report.read_text())]

    def _compile(self, entries: Sequence[Path]) -> list[str]:
        """Compile entries that were recorded, and move them to the cache."""
        if not entries:
            return []
        count, began = len(entries), time.monotonic()
        at_once = min(len(os.sched_getaffinity(0)), _MOST_AT_ONCE, count)
        self._tell(f"Compile {count} kernels of DeepGEMM for this GPU, once, {at_once} at a time")
        with ThreadPoolExecutor(at_once) as threads:
            faults = [fault for fault in threads.map(self._fault, entries) if fault]
        self._tell(f"Compiled {count - len(faults)} kernels in {time.monotonic() - began:.0f} s")
        if not faults:
            return []
        return [f"{len(faults)} of {count} kernels did not compile, the first: {faults[0]}"]

    def _fault(self, entry: Path) -> str:
        """Compile one entry; return what went wrong, or nothing."""
        try:
            if not self._stop.is_set():
                self._make(entry)
        except (_Fault, OSError, ValueError) as error:
            return f"{entry.name}: {error}"
        return ""

    def _make(self, entry: Path) -> None:
        words = (entry / _COMMAND).read_text("utf-8").splitlines()
        # The folder that DeepGEMM compiled in, which is the entry by now.
        was = next((word for word in words if word.endswith(f"/{_CUBIN}")), "").removesuffix(_CUBIN)
        if not was:
            raise _Fault(f"its command names no {_CUBIN}")
        words = [word.replace(was, f"{entry}/") for word in words]
        self._run([self._compiler, *words], cwd=entry)
        (entry / _COMMAND).unlink()
        with (entry / _CUBIN).open("rb") as made:
            os.fsync(made.fileno())
        target = self._folders[0] / "cache" / entry.name
        target.parent.mkdir(exist_ok=True)
        # What is not empty is not replaced: a server that met the kernel was first.
        with contextlib.suppress(OSError):
            os.rename(entry, target)
        if not target.exists():
            raise _Fault(f"it could not be moved to {target}")

    def _run(
        self,
        command: list[str],
        text: str = "",
        *,
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
        limit_s: float | None = None,
    ) -> str:
        """Return what a command prints. Raises _Fault when it fails, takes too long, or is stopped.

        text  what it reads
        """
        limit_s = limit_s or _COMPILER_LIMIT_S
        ends, unread = time.monotonic() + limit_s, text or None
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
            cwd=cwd,
            start_new_session=True,
        ) as process:
            while True:
                try:
                    said, _ = process.communicate(unread, timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    unread = None
                    if self._stop.is_set() or time.monotonic() > ends:
                        # A compiler is several processes.
                        os.killpg(process.pid, signal.SIGKILL)
                        why = "was stopped" if self._stop.is_set() else f"took over {limit_s:g} s"
                        raise _Fault(f"{Path(command[0]).name} {why}") from None
        if process.returncode:
            raise _Fault(f"{shlex.join(command)} failed ({process.returncode}):\n{said.strip()}")
        return said


def _device_facts(device: torch.device) -> tuple[str, str, int]:
    """Return what kernels are compiled for: number of the architecture, name, processors."""
    found = torch.cuda.get_device_properties(device)
    return f"{found.major}{found.minor}", found.name, found.multi_processor_count
