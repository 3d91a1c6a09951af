"""Weights in fp8 blocks for tests: every code but NaN, scales of several sizes."""

import torch


def fp8_weight(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return e4m3 [..., N, K] and float32 power-of-two scales per 128 x 128 block.

    Numbers are about as large as makes a product of unit inputs a unit output.
    """
    *outer, rows, columns = shape
    codes = (torch.randn(shape) * 32).clamp(-448, 448).to(torch.float8_e4m3fn)
    blocks = (*outer, -(-rows // 128), -(-columns // 128))
    size = -5.0 - round(torch.tensor(float(columns)).log2().item() / 2)
    return codes, torch.exp2(torch.randint(-1, 2, blocks) + size)
