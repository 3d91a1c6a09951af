"""What stands against kernels on a CUDA device."""

import contextlib
import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from jit_kernels.cuda_device import launched, nvcc, why_no_hopper, why_no_nvcc, why_no_triton


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Let each test look anew, and the next ones too."""
    for probe in (why_no_triton, why_no_nvcc, why_no_hopper):
        probe.cache_clear()
    yield
    for probe in (why_no_triton, why_no_nvcc, why_no_hopper):
        probe.cache_clear()


def _devices(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found)


def test_without_a_device_that_is_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _devices(monkeypatch, False)

    assert why_no_triton() == "no CUDA device"
    assert why_no_nvcc() == "no CUDA device"


@pytest.mark.parametrize(("found", "said"), [(None, "triton is not installed"), ("a spec", None)])
def test_with_a_device_triton_must_be_there(
    monkeypatch: pytest.MonkeyPatch, found: str | None, said: str | None
) -> None:
    _devices(monkeypatch, True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)

    assert why_no_triton() == said


def test_the_compiler_of_the_named_toolkit_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _devices(monkeypatch, True)
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "nvcc"
    compiler.touch(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))

    assert nvcc() == str(compiler)
    assert why_no_nvcc() is None


def test_without_a_compiler_it_is_said_where_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _devices(monkeypatch, True)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)

    assert "CUDA_HOME" in (why_no_nvcc() or "")


@pytest.mark.parametrize(
    ("capability", "said"),
    [((8, 9), "A card is no Hopper GPU"), ((9, 0), None), ((10, 0), "A card is no Hopper GPU")],
)
def test_code_for_hopper_needs_such_a_device(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], said: str | None
) -> None:
    _devices(monkeypatch, True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: "a spec")
    monkeypatch.setattr(shutil, "which", lambda name, path=None: "nvcc")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")

    assert why_no_hopper() == said


def test_code_for_hopper_needs_triton_and_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    _devices(monkeypatch, True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    assert why_no_hopper() == "triton is not installed"


@pytest.mark.parametrize("current", [1, 0])
def test_a_launch_is_on_the_stream_and_the_device_of_its_tensors(
    monkeypatch: pytest.MonkeyPatch, current: int
) -> None:
    now = [current]
    seen: list[tuple[object, ...]] = []

    @contextlib.contextmanager
    def entered(index: int) -> Iterator[None]:
        now.append(index)
        yield
        now.pop()

    def function(*arguments: object) -> int:
        seen.append((now[-1], *arguments))
        return 3

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: now[-1], raising=False)
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: 100 + index, raising=False
    )
    monkeypatch.setattr(torch.cuda, "device", entered)

    assert launched(torch.device("cuda", 1), function, "a", 2) == 3

    assert seen == [(1, "a", 2, 101)]
    assert now == [current]
