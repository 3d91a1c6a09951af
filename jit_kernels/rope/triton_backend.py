"""Rotations in Triton: cosines and signed sines of positions."""

import torch
import triton
import triton.language as tl

from jit_kernels.triton_launch import prepared

_ELEMENTS = 256


@triton.jit
def cosines(position: tl.tensor, angle: tl.tensor) -> tl.tensor:
    """Return the first half of rotations: of integer positions and float32 angles a position."""
    return tl.cos(position.to(tl.float32) * angle)


@triton.jit
def signed_sines(position: tl.tensor, angle: tl.tensor, channel: tl.tensor) -> tl.tensor:
    """Return the second half of rotations; see `cosines`."""
    # A product, for the sine of 0 as well is to change its sign.
    return tl.sin(position.to(tl.float32) * angle) * tl.where(channel % 2 == 0, -1.0, 1.0)


@prepared
@triton.jit(do_not_specialize=["tokens"])
def _rotations_kernel(
    position_ptr: tl.tensor, angle_ptr: tl.tensor, out_ptr: tl.tensor, tokens: tl.tensor,
    channels: tl.tensor, ROWS: tl.constexpr, WIDTH: tl.constexpr,
) -> None:  # fmt: skip
    token, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    position = tl.load(position_ptr + token, mask=token < tokens, other=0)[:, None]
    angle = tl.load(angle_ptr + channel, mask=channel < channels, other=0.0)[None, :]
    mask = (token < tokens)[:, None] & (channel < channels)[None, :]
    at = out_ptr + token.to(tl.int64)[:, None] * (2 * channels) + channel[None, :]
    # Sines and cosines of large angles take long: each has programs of its own.
    if tl.program_id(1) == 0:
        tl.store(at, cosines(position, angle), mask=mask)
    else:
        tl.store(at + channels, signed_sines(position, angle, channel[None, :]), mask=mask)


def rotations(positions: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return cosines and signed sines; see `jit_kernels.rope.rotations`."""
    tokens, channels = positions.shape[0], angles.shape[0]
    out = torch.empty((tokens, 2, channels), dtype=torch.float32, device=positions.device)
    if not out.numel():
        return out
    block = triton.next_power_of_2(channels)
    group = max(1, _ELEMENTS // block)
    _rotations_kernel[(triton.cdiv(tokens, group), 2)](
        *(positions.contiguous(), angles.contiguous(), out, tokens, channels),
        ROWS=group,
        WIDTH=block,
        num_warps=4,
    )
    return out
