"""What attention gives, turned back and rounded for the grouped output projection."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.quant_fp8 import GROUP
from jit_kernels.registry import Backend, select

__all__ = ["out_rope_quant"]

_MODULE = "jit_kernels.out_rope_quant"
_out_rope_quant: Callable[..., tuple[torch.Tensor, torch.Tensor]] = select(
    "out_rope_quant",
    [
        Backend("cuda", f"{_MODULE}.cuda_backend:out_rope_quant", why_no_hopper, "cuda"),
        Backend("reference", f"{_MODULE}.reference:out_rope_quant"),
    ],
)


def out_rope_quant(
    out: torch.Tensor, rotation: torch.Tensor, *, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `quantise_rows(rope(out, inverse=True))` in groups of heads, float32 in between.

    out       [T, H, C] float32 or bfloat16, H a multiple of `groups`, C of 128; heads of a token
              side by side, tokens may be strided; not changed
    rotation  [T, 2, R] float32, as `jit_kernels.rope.rope` takes it

    Returns (codes [T, groups, K] float8_e4m3fn, scales [T, groups, K / 128] float32), K = H C /
    groups, both as `jit_kernels.fp8_linear.fp8_linear_grouped` takes them without copying. Raises
    ShapeError.
    """
    tokens, heads, width = out.shape
    check_dtype("out", out, torch.float32, torch.bfloat16)
    check_shape("rotation", rotation, tokens, 2, None)
    check_dtype("rotation", rotation, torch.float32)
    if width % GROUP or not heads or heads % groups:
        raise ShapeError(
            f"{heads} heads of {width} channels do not make {groups} groups of {GROUP}"
        )
    if rotation.shape[2] > width or rotation.shape[2] % 2:
        raise ShapeError(f"of {width} channels {rotation.shape[2]} turn, expected whole pairs")
    if tokens and (out.stride(2) != 1 or out.stride(1) != width):
        raise ShapeError("the heads of a token must lie side by side")
    codes, scales = _out_rope_quant(out, rotation)
    return codes.unflatten(1, (groups, -1)), scales.unflatten(1, (groups, -1))
