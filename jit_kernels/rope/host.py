"""Interleaved rotary embedding in C."""

import torch

from jit_kernels.host import function

_rope = function("rope", "pipfiiii")


def rope(x: torch.Tensor, rotation: torch.Tensor, inverse: bool) -> torch.Tensor:
    """Rotate the last channels in place; see `jit_kernels.rope.rope`."""
    tokens, heads, width = x.shape
    turned = rotation.shape[2]
    wide = x if x.dtype is torch.float32 else x[..., width - turned :].to(torch.float32)
    _rope(
        *(wide.data_ptr(), wide.stride(0), rotation.contiguous().data_ptr()),
        *(-1.0 if inverse else 1.0, tokens, heads, wide.shape[2], turned),
    )
    if wide is not x:
        x[..., width - turned :] = wide
    return x
