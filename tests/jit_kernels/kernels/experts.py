"""Expert weights of both forms for tests, drawn as codes so that every number is exact."""

import torch

from jit_kernels.expert_weights import Fp4Experts, Fp8Experts, pack_fp4
from tests.jit_kernels.kernels.fp8_weights import fp8_weight


def fp8_experts(count: int, width: int, inner: int) -> Fp8Experts:
    """Return random experts in fp8 blocks."""
    gate_up, down = fp8_weight(count, 2 * inner, width), fp8_weight(count, width, inner)
    return Fp8Experts(*gate_up, *down)


def fp4_weight(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random words and scales of fp4 weights [..., N, K]; scales within 2^3."""
    *outer, rows, columns = shape
    packed = torch.randint(0, 256, (*outer, rows, columns // 2), dtype=torch.uint8)
    middle = 127 - 2 - round(torch.tensor(float(columns)).log2().item() / 2)
    scales = torch.randint(middle - 1, middle + 2, (*outer, rows, columns // 32))
    return pack_fp4(packed, scales.to(torch.uint8))


def fp4_experts(count: int, width: int, inner: int) -> Fp4Experts:
    """Return random experts in packed fp4."""
    gate_up, down = fp4_weight(count, 2 * inner, width), fp4_weight(count, width, inner)
    return Fp4Experts(*gate_up, *down)


def chosen_experts(rows: int, experts: int, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random distinct experts per row, and weights that sum to about one."""
    return torch.rand(rows, experts).argsort(1)[:, :top_k], torch.rand(rows, top_k) * 2 / top_k
