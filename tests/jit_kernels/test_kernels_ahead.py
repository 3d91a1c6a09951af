"""Kernels compiled ahead of the server; scripts stand in for nvcc, a package for DeepGEMM."""

import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

import jit_kernels.kernels_ahead as kernels_ahead
from jit_kernels.kernel_recorder import record
from jit_kernels.kernels_ahead import compile_ahead, name_folder
from jit_kernels.vendor_calls import VendorCalls, to_json, vendor_calls
from jit_kernels.vendor_library import why_no_deep_gemm

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "tests" / "testing" / "jit_package"
# Notes what it compiles; 40 columns do not compile, 48 take for ever once they have begun.
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo release 13.0 && exit
for word in "$@"; do
    case $last in -o | --output-file) out=$word ;; esac
    case $word in *.cu) source=$word ;; esac
    last=$word
done
grep -q "40 columns" $source && echo "error: 40 columns" && exit 2
grep -q "48 columns" $source && touch "$(dirname "$0")/began" && sleep 1000
cat $source >> "$(dirname "$0")/compiled"
cat $source > $out
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of kernels; the compiler's log lies beside it."""
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "nvcc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.delenv("DG_JIT_NVCC_COMPILER", raising=False)
    monkeypatch.syspath_prepend(str(PACKAGE))
    # On a GPU tests before these may have loaded the real one.
    monkeypatch.delitem(sys.modules, "deep_gemm", raising=False)
    monkeypatch.setattr(kernels_ahead, "_device_facts", lambda device: ("90", "a device", 132))  # pyright: ignore
    yield tmp_path / "kernels"
    sys.modules.pop("deep_gemm", None)


BACKEND = "jit_kernels.bf16_linear.deep_gemm_backend"


@pytest.fixture
def recorded_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have calls recorded in this process: another one would import torch first."""
    run = kernels_ahead._Cache._run  # pyright: ignore[reportPrivateUsage]

    def here(self: Any, command: list[str], text: str = "", **options: Any) -> str:
        if "jit_kernels.kernel_recorder" not in command:
            return run(self, command, text, **options)
        *_, device, report = command
        with monkeypatch.context() as patch:
            for name in ("DG_JIT_CACHE_DIR", "DG_JIT_NVCC_COMPILER"):
                patch.setenv(name, options["environment"][name])
            faults = record(text, torch.device(device))
        Path(report).write_text(json.dumps(faults), encoding="utf-8")
        return ""

    monkeypatch.setattr(kernels_ahead._Cache, "_run", here)  # pyright: ignore[reportPrivateUsage]
    sys.modules.pop(BACKEND, None)
    yield
    sys.modules.pop(BACKEND, None)


def calls(*columns: int, rows: tuple[int, ...] = (4, 9, 64, 65, 500)) -> list[VendorCalls]:
    return [VendorCalls("bf16_linear", "mixed", (count, 64), rows) for count in columns]


def fill(wanted: list[VendorCalls], told: list[str] | None = None) -> list[str]:
    tell = ([] if told is None else told).append
    return compile_ahead(wanted, torch.device("cpu"), stop=Event(), tell=tell)


def compiled(cache: Path) -> list[str]:
    """Return what was compiled so far, but for the empty kernel."""
    log = cache.parent / "bin" / "compiled"
    lines = log.read_text().splitlines() if log.exists() else []
    return sorted(line for line in lines if "columns" in line)


@pytest.mark.parametrize("layout", ["0.1", "0.2"])
def test_what_the_server_meets_is_there_under_the_name_that_it_looks_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    monkeypatch.setenv("DG_TEST_LAYOUT", layout)
    told: list[str] = []

    assert fill(calls(128, 256), told) == []

    assert len(compiled(cache)) == 4
    assert told[0].startswith("Compile 4 kernels of DeepGEMM for this GPU, once, ")
    assert told[1].startswith("Compiled 4 kernels in ")
    library = importlib.import_module("deep_gemm")
    for rows in (9, 100):
        library.bf16_gemm_nt(torch.empty(rows, 64), torch.empty(128, 64), None)
    assert len(compiled(cache)) == 4
    for entry in (cache / "cache").iterdir():
        assert (entry / "kernel.cubin").read_text() == (entry / "kernel.cu").read_text()
        assert not (entry / "command").exists()
    assert {path.name for path in (cache / "ahead").iterdir() if len(path.name) < 32} == set()


@pytest.mark.usefixtures("recorded_here")
def test_a_later_start_does_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(calls(128))
    told: list[str] = []
    monkeypatch.setattr(kernels_ahead._Cache, "_record", None)  # pyright: ignore[reportPrivateUsage]

    assert fill(calls(128), told) == []

    assert told == []


@pytest.mark.usefixtures("recorded_here")
def test_only_what_is_missing_is_compiled(cache: Path) -> None:
    fill(calls(128))
    gone = next(iter((cache / "cache").iterdir()))
    for path in gone.iterdir():
        path.unlink()
    gone.rmdir()

    assert fill(calls(128, 256)) == []

    assert len(compiled(cache)) == 5


@pytest.mark.usefixtures("recorded_here")
def test_few_rows_that_go_elsewhere_take_no_kernel(cache: Path) -> None:
    assert fill(calls(128, rows=(1, 8))) == []

    assert compiled(cache) == []


@pytest.mark.usefixtures("recorded_here")
def test_what_does_not_compile_is_told_and_tried_again(cache: Path) -> None:
    (fault,) = fill(calls(40, 128))
    (again,) = fill(calls(40, 128))

    assert "2 of 4 kernels did not compile" in fault
    assert "error: 40 columns" in fault
    assert "2 of 2 kernels did not compile" in again
    assert len(compiled(cache)) == 2


@pytest.mark.usefixtures("recorded_here")
def test_calls_that_the_library_refuses_are_told_and_the_others_made(cache: Path) -> None:
    (fault,) = fill(calls(16, 128))

    assert fault.endswith("bf16_linear: RuntimeError: no kernel has 16 columns")
    assert len(compiled(cache)) == 2


@pytest.mark.usefixtures("recorded_here")
def test_it_stops_when_it_is_told_to(cache: Path) -> None:
    stop = Event()
    began = cache.parent / "bin" / "began"

    def stop_it() -> None:
        while not began.exists():
            time.sleep(0.02)
        stop.set()

    def tell(line: str) -> None:
        threading.Thread(target=stop_it, daemon=True).start()

    (fault,) = compile_ahead(calls(48), torch.device("cpu"), stop=stop, tell=tell)

    assert "nvcc was stopped" in fault
    assert list((cache / "ahead").iterdir()) == []


@pytest.mark.usefixtures("recorded_here")
def test_a_compiler_that_hangs_is_ended(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Those that do not hang must manage, too, whatever else the machine has to do.
    monkeypatch.setattr(kernels_ahead, "_COMPILER_LIMIT_S", 2)

    (fault,) = fill(calls(48, 128))

    assert "2 of 4 kernels did not compile" in fault
    assert "nvcc took over 2 s" in fault
    assert len(compiled(cache)) == 2


def test_a_recorder_that_dies_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_ahead, "to_json", lambda calls: "no list")  # pyright: ignore

    (fault,) = fill(calls(128))

    assert "are compiled one after another" in fault
    assert "JSONDecodeError" in fault


def test_a_folder_with_a_name_that_is_no_text_is_told(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DG_JIT_CACHE_DIR", os.fsdecode(os.fsencode(cache) + b"\xe9"))

    [fault] = fill(calls(32))

    assert "compiled one after another" in fault


def test_servers_that_start_together_compile_once(cache: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        faults = [*threads.map(fill, [calls(128, 256)] * 2)]

    assert faults == [[], []]
    assert len(compiled(cache)) == 4


def test_a_folder_that_cannot_be_written_is_told(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file")

    (fault,) = fill(calls(128))

    assert "are compiled one after another" in fault
    assert str(cache) in fault


def test_without_a_compiler_or_calls_there_is_nothing_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fill([]) == []
    monkeypatch.setattr(kernels_ahead, "nvcc", lambda: None)
    assert fill(calls(128)) == []

    assert not cache.exists()


def test_the_folder_is_named_unless_the_environment_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DG_JIT_CACHE_DIR", "mine")
    name_folder()
    assert os.environ["DG_JIT_CACHE_DIR"] == "mine"

    monkeypatch.setenv("DG_JIT_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    name_folder()
    assert os.environ["DG_JIT_CACHE_DIR"] == "caches/umbra/deep_gemm"


@pytest.mark.gpu
def test_on_the_gpu_a_kernel_compiled_ahead_is_the_one_that_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := why_no_deep_gemm():
        pytest.skip(reason)
    importlib.import_module("jit_kernels.bf16_linear")
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(tmp_path))
    device = torch.device("cuda", torch.cuda.current_device())
    wanted = vendor_calls("bf16_linear", (256, 512), (64, 4096))

    assert compile_ahead(wanted, device, stop=Event(), tell=print) == []

    before = sorted(path.name for path in (tmp_path / "cache").iterdir())
    module = [sys.executable, "-m", "jit_kernels.kernel_recorder", str(device)]
    text, report = to_json(wanted), tmp_path / "faults"
    subprocess.run([*module, str(report)], input=text, text=True, cwd=ROOT, check=True)
    assert report.read_text() == "[]"
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == before != []
