"""Prepared kernels: compiled once for each kind of arguments, launched with what Triton would."""

import importlib.util
import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton  # pyright: ignore[reportMissingTypeStubs]
from triton.runtime.jit import JITFunction  # pyright: ignore[reportMissingTypeStubs]

from jit_kernels.triton_launch import PreparedKernel, prepared


class FakeKernel:
    """A kernel (x, rows, WIDTH) that counts its compilations; kinds are types, and 1 is its own."""

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.launches: list[tuple[Any, ...]] = []
        self.device_caches = {0: (None, None, None, None, self._bind)}

    def _bind(self, x: Any, rows: int, WIDTH: int = 8, **options: Any) -> tuple[Any, Any, Any]:
        kinds = [(x.dtype, x.data_ptr() % 16), ("i32", rows == 1), ("constexpr", WIDTH)]
        return {"x": x, "rows": rows, "WIDTH": WIDTH}, kinds, options

    def run(self, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> Any:
        assert not warmup
        self.compiled.append((grid, *args, *kwargs.items()))
        launches = self.launches
        return SimpleNamespace(
            function=f"function {len(self.compiled)}",
            packed_metadata=(4, 1, 0),
            run=lambda *arguments: launches.append(arguments),
        )


def test_the_installed_triton_is_known_and_another_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel: Any = triton.jit(_nothing)
    if not isinstance(kernel, JITFunction):
        pytest.skip("Triton's interpreter launches nothing")
    assert isinstance(prepared(kernel), PreparedKernel)

    monkeypatch.setattr(triton, "__version__", "99.0.0")
    with caplog.at_level(logging.INFO, logger="umbra.kernels"):
        assert prepared(kernel) is kernel
    assert "Triton 99.0.0 launches kernels by itself" in caplog.text


def _nothing() -> None:
    """Do nothing, as a kernel."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeKernel:
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 77, raising=False)
    return FakeKernel()


def test_what_was_compiled_is_launched_with_arguments_in_their_order(fake: FakeKernel) -> None:
    kernel, x = PreparedKernel(fake), torch.zeros(4)

    kernel[3, 2](x, 5, WIDTH=16, num_warps=4)
    kernel[7,](x, 6, num_warps=4, WIDTH=16)

    assert len(fake.compiled) == 1
    (launch,) = fake.launches
    assert launch[:6] == (7, 1, 1, 77, "function 1", (4, 1, 0))
    assert launch[6:9] == (None, None, None)
    assert launch[9] is x
    assert launch[10:] == (6, 16)


def test_each_kind_of_arguments_is_compiled_for_itself(fake: FakeKernel) -> None:
    kernel, x = PreparedKernel(fake), torch.zeros(8)
    calls: list[tuple[tuple[Any, ...], dict[str, int]]] = [
        ((x, 5), {"num_warps": 4}),
        ((x[1:], 5), {"num_warps": 4}),
        ((x.to(torch.bfloat16), 5), {"num_warps": 4}),
        ((x, 1), {"num_warps": 4}),
        ((x, 5), {"num_warps": 8}),
        ((x, 5), {"num_warps": 4, "WIDTH": 32}),
    ]

    for _ in range(3):
        for args, options in calls:
            kernel[1,](*args, **options)

    assert len(fake.compiled) == len(calls)
    functions = [launch[4] for launch in fake.launches]
    assert functions == 2 * [f"function {1 + k}" for k in range(len(calls))]


def test_other_kernels_are_left_as_they_are() -> None:
    kernel = FakeKernel()

    assert prepared(kernel) is kernel


@pytest.mark.gpu
def test_on_the_gpu_later_launches_do_what_the_first_did() -> None:
    from jit_kernels.quant_fp8 import reference, triton_backend

    for rows in (16, 32, 1, 48, 3, 16):
        x = torch.randn(rows, 4096, device="cuda", dtype=torch.bfloat16)

        codes, scales = triton_backend.quantise_rows(x)

        want_codes, want_scales = reference.quantise_rows(x)
        assert torch.equal(codes.view(torch.uint8), want_codes.view(torch.uint8))
        assert torch.equal(scales, want_scales)


@pytest.mark.gpu
def test_on_the_gpu_launches_are_captured_where_they_are_made() -> None:
    from jit_kernels.quant_fp8 import triton_backend

    x = torch.randn(16, 4096, device="cuda", dtype=torch.bfloat16)
    triton_backend.quantise_rows(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        codes, scales = triton_backend.quantise_rows(x)
    x.copy_(torch.randn(16, 4096))

    graph.replay()

    want = triton_backend.quantise_rows(x)
    assert torch.equal(codes.view(torch.uint8), want[0].view(torch.uint8))
    assert torch.equal(scales, want[1])
