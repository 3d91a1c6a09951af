"""Inputs of hyper-connections, and what is held against them."""

from types import ModuleType

import torch

from jit_kernels.hyper_connection import composed, reference

__all__ = ["EPS", "exact_post", "in_two_parts", "mix_all", "weights"]

EPS = {"norm_eps": 1e-6, "hc_eps": 1e-6}


def weights(count: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return fn, base and scale; logits are of order one."""
    rows = (2 + count) * count
    fn = torch.randn(rows, count * width) * (count * width) ** -0.5
    return fn, torch.randn(rows), torch.randn(3)


def in_two_parts(fn: torch.Tensor) -> torch.Tensor:
    """Return in float64 what two bfloat16 parts are of `fn`."""
    high = fn.bfloat16().float()
    return high.double() + (fn - high).bfloat16().double()


def exact_post(
    x: torch.Tensor, fn: torch.Tensor, base: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Return `post` computed in float64."""
    count, flat = x.shape[1], x.double().flatten(1)
    logits = flat @ fn.double().T / (flat.square().mean(1, keepdim=True) + 1e-6).sqrt()
    return 2 * torch.sigmoid(logits * scale[1] + base)[:, count : 2 * count].float()


def mix_all(
    backend: ModuleType,
    x: torch.Tensor,
    mine: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    gain: torch.Tensor,
) -> list[torch.Tensor]:
    """Return what `mhc_pre`, `mhc_pre_norm` and `mhc_head` give, the norm as `composed` has it."""
    normed = composed if backend is reference else backend
    return [
        *backend.mhc_pre(x, *mine, iterations=20, **EPS),
        *normed.mhc_pre_norm(x, *mine, gain, iterations=20, **EPS),
        backend.mhc_head(x, mine[0][:4], mine[1][:4], mine[2][:1], **EPS),
    ]
