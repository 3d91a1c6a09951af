"""Forms of expert weights in plain torch."""

import torch

from jit_kernels.checks import ShapeError
from jit_kernels.expert_weights.forms import BLOCK, GROUP, Fp4Experts, Fp8Experts
from jit_kernels.fp8_linear.reference import dense as dense_fp8

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Of the code of columns 8 j .. 8 j + 7 of a group: the bit of its sign, the lowest of its size.
_PLACES = ((15, 6), (12, 3), (14, 0), (13, 9))
# The largest group's scale becomes 2^6: 6 * 2^6 = 384 is the largest number that fits.
_HEADROOM = 6


def pack_fp4(packed: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rearrange; see `jit_kernels.expert_weights.pack_fp4`."""
    if scales.numel() and int(scales.max()) > 128:
        raise ShapeError(f"an fp4 scale of 2^{int(scales.max()) - 127}: at most 2 can be packed")
    *outer, columns = packed.shape
    words = torch.empty((*outer, columns // 2), dtype=torch.int16, device=packed.device)
    # A matrix at a time: 32-bit copies of all experts would not fit beside them.
    matrices = packed.reshape(-1, *packed.shape[-2:])
    for mine, out in zip(matrices, words.view(-1, *words.shape[-2:]), strict=True):
        out.copy_(_packed_matrix(mine.view(torch.uint8).to(torch.int32)))
    return words, scales.contiguous()


def _packed_matrix(codes: torch.Tensor) -> torch.Tensor:
    rows = codes.shape[0]
    by_column = torch.stack((codes & 15, codes >> 4), 2).view(rows, -1, 4, GROUP // 4)
    word = torch.zeros_like(by_column[:, :, 0])
    for part, (sign, size) in enumerate(_PLACES):
        code = by_column[:, :, part]
        word |= ((code >> 3) << sign) | ((code & 7) << size)
    return torch.where(word > 0x7FFF, word - 0x10000, word).to(torch.int16).flatten(1)


def fp4_numbers(words: torch.Tensor) -> torch.Tensor:
    """Return the e2m1 numbers of packed words, [..., N, K / 4] -> [..., N, K] float32."""
    wide = words.to(torch.int32).unflatten(-1, (-1, 1, GROUP // 4))
    values = torch.tensor(VALUES, device=words.device)
    parts = [values[(wide >> size) & 7] * (1 - 2 * ((wide >> sign) & 1)) for sign, size in _PLACES]
    return torch.cat(parts, -2).flatten(-3)


def dense_fp4(words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return packed fp4 weights in float32."""
    by_column = torch.exp2(scales.to(torch.float32) - 127).repeat_interleave(GROUP, -1)
    return fp4_numbers(words) * by_column


def dense_expert(
    weights: Fp8Experts | Fp4Experts, expert: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gate_up [2 I, d] and down [d, I] of one expert in float32."""
    dense = dense_fp8 if isinstance(weights, Fp8Experts) else dense_fp4
    return (
        dense(weights.gate_up[expert], weights.gate_up_scales[expert]),
        dense(weights.down[expert], weights.down_scales[expert]),
    )


def expand_fp4(
    words: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor, block_scales: torch.Tensor
) -> torch.Tensor:
    """Expand; see `jit_kernels.expert_weights.expand_fp4`."""
    lost = [_expand_matrix(*one) for one in zip(words, scales, codes, block_scales, strict=True)]
    return torch.tensor(lost, dtype=torch.int32, device=words.device)


def _expand_matrix(
    words: torch.Tensor, scales: torch.Tensor, codes: torch.Tensor, block_scales: torch.Tensor
) -> int:
    exponents = scales.to(torch.int32)
    blocks = exponents.view(-(-len(scales) // BLOCK), BLOCK, -1, BLOCK // GROUP)
    top = (blocks.amax((1, 3)) - _HEADROOM).clamp_min(1)
    block_scales.copy_(torch.exp2(top.to(torch.float32) - 127))
    over = exponents - top.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK // GROUP, 1)
    factors = torch.exp2(over.clamp_min(-32).to(torch.float32)).repeat_interleave(GROUP, 1)
    exact = fp4_numbers(words) * factors
    codes.copy_(exact.to(torch.float8_e4m3fn))
    return int((codes.to(torch.float32) != exact).sum())
