"""Calls of vendors' libraries, told to another process; the recorded ones are DeepGEMM's."""

import pytest
import torch

import jit_kernels.registry as registry
from jit_kernels.bf16_linear import bf16_linear
from jit_kernels.fp8_linear import fp8_linear, fp8_linear_grouped
from jit_kernels.vendor_calls import VendorCalls, from_json, make, to_json, vendor_calls
from tests.testing import fake_deep_gemm

CPU = torch.device("cpu")


def test_calls_reach_another_process_as_they_are() -> None:
    calls = [
        VendorCalls("fp8_linear", "mixed", (2, 128, 256), (1, 9)),
        VendorCalls("paged_logits", "deep_gemm", (64, 128), (200,)),
    ]

    assert from_json(to_json(calls)) == calls


def test_an_op_that_no_library_runs_has_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = registry._CHOSEN  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(chosen, ("bf16_linear", "cuda"), "reference")
    monkeypatch.setitem(chosen, ("fp8_linear_grouped_invariant", "cuda"), "deep_gemm")

    assert vendor_calls("bf16_linear", (8, 8), [1]) == []
    assert vendor_calls("fp8_linear_grouped_invariant", (2, 128, 128), [5, 0, 3, 5]) == [
        VendorCalls("fp8_linear", "deep_gemm", (2, 128, 128), (3, 5))
    ]


@pytest.mark.parametrize("invariant", [False, True])
def test_the_calls_are_those_of_the_op(monkeypatch: pytest.MonkeyPatch, invariant: bool) -> None:
    seen = fake_deep_gemm.install(monkeypatch)
    ending, rows = "_invariant" if invariant else "", (1, 8, 9, 33)
    for count in rows:
        codes = torch.zeros(count, 2, 256, dtype=torch.float8_e4m3fn)
        scales, weight_scales = torch.zeros(count, 2, 2), torch.zeros(2, 1, 2)
        weight = torch.zeros(2, 128, 256, dtype=torch.float8_e4m3fn)
        fp8_linear_grouped(codes, scales, weight, weight_scales, invariant=invariant)
        rows_alone = torch.zeros(count, 256, dtype=torch.float8_e4m3fn)
        one = rows_alone, scales[:, 0], weight[0], weight_scales[0]
        fp8_linear(*one, invariant=invariant)
        # No kernel of DeepGEMM has 4 columns.
        fp8_linear(*one[:2], weight[0, :4], weight_scales[0], invariant=invariant)
        x = torch.zeros(count, 256, dtype=torch.bfloat16)
        for columns in (16, 4):
            bf16_linear(x, x.new_zeros(columns, 256), invariant=invariant)
    want = [*seen]
    seen.clear()

    for op, sizes in (
        ("fp8_linear_grouped", (2, 128, 256)),
        ("fp8_linear", (128, 256)),
        ("fp8_linear", (4, 256)),
        ("bf16_linear", (16, 256)),
        ("bf16_linear", (4, 256)),
    ):
        for calls in vendor_calls(op + ending, sizes, rows):
            make(calls, CPU)

    assert sorted(map(repr, seen)) == sorted(map(repr, want))
    assert len(want) == 3 * (4 if invariant else 2)
