"""Fp8 products whose activations are not rounded: what is left of an error is not theirs."""

import pytest
import torch
from torch import Tensor

import jit_kernels.fp8_linear.reference as fp8_reference
import layers.linear.fp8 as fp8
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from jit_kernels.silu_mul import silu_mul

__all__ = ["round_no_activations"]


def round_no_activations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand activations to products of fp8 weights in float32, with no scales."""
    for name, stand_in in {
        "quantise_rows": _plain,
        "norm_quant": _normed,
        "silu_mul_quant": _gated,
        "out_rope_quant": _turned,
        "rounds_rows": _no,
        "fp8_linear": _product,
        "fp8_linear_grouped": _grouped,
    }.items():
        monkeypatch.setattr(fp8, name, stand_in)


def _plain(x: Tensor) -> tuple[Tensor, None]:
    return x.to(torch.float32), None


def _no(x: Tensor, norm: Tensor | None) -> bool:
    return False


def _normed(x: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, None]:
    return rms_norm(x.to(torch.float32), weight, eps=eps), None


def _gated(gate_up: Tensor, *, limit: float) -> tuple[Tensor, None]:
    return silu_mul(gate_up.to(torch.float32), limit=limit), None


def _turned(out: Tensor, rotation: Tensor, *, groups: int) -> tuple[Tensor, None]:
    turned = rope(out.to(torch.float32, copy=True).contiguous(), rotation, inverse=True)
    return turned.view(out.shape[0], groups, -1), None


def _product(
    x: Tensor,
    _: None,
    weight: Tensor,
    scales: Tensor,
    *,
    out_dtype: torch.dtype = torch.bfloat16,
    invariant: bool = False,
) -> Tensor:
    assert not invariant
    return (x @ fp8_reference.dense(weight, scales).T).to(out_dtype)


def _grouped(
    x: Tensor, _: None, weight: Tensor, scales: Tensor, *, invariant: bool = False
) -> Tensor:
    assert not invariant
    groups = range(weight.shape[0])
    return torch.stack([_product(x[:, g], None, weight[g], scales[g]) for g in groups], 1)
