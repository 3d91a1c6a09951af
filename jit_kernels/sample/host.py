"""Sampling on the CPU: filters in torch, the race in C."""

import torch

from jit_kernels.host import by_rows, function
from jit_kernels.sample import reference
from jit_kernels.sample.noise import row_keys

_race_rows = function("race_rows", "pipippppii")


def sample(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
) -> torch.Tensor:
    """Draw one token a row; see `jit_kernels.sample.sample`."""
    filters = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    return reference.draw(race, logits, temperature, filters, row_keys(seed, position))


def race(
    values: torch.Tensor,
    ids: torch.Tensor | None,
    temperature: torch.Tensor,
    keys: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the winning token of each row and its score; see `reference.race`."""
    rows, width = values.shape
    values = values if values.stride(1) == 1 else values.contiguous()
    ids = None if ids is None else ids.expand(rows, width).contiguous()
    temperature, keys = temperature.contiguous(), keys.contiguous()
    tokens = torch.empty(rows, dtype=torch.int64)
    scores = torch.empty(rows, dtype=torch.float64)

    def some(first: int, last: int) -> None:
        part = slice(first, last)
        here = 0 if ids is None else ids[part].data_ptr()
        _race_rows(
            *(values[part].data_ptr(), values.stride(0), here, width),
            *(temperature[part].data_ptr(), keys[part].data_ptr()),
            *(tokens[part].data_ptr(), scores[part].data_ptr(), last - first, width),
        )

    by_rows(some, rows)
    return tokens, scores
