"""Prompt tokens behind others: absorbed attention, and expanding all records first."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from jit_kernels.grouped_attention import ChunkRows, grouped_attention
from jit_kernels.latent_attention import latent_attention
from jit_kernels.latent_queries import latent_queries
from jit_kernels.tile_linear import tile_linear, tile_linear_grouped
from tests.bench.mla_variants.variants import Shape

__all__ = ["prefill"]

PAGE = 256


def prefill(shape: Shape, tokens: int, keys: int, dtype: torch.dtype) -> tuple[float, float]:
    """Return ms of `tokens` prompt tokens behind `keys` others: absorbed, and expanded."""
    s, end = shape, keys + tokens
    pages = -(-end // PAGE)
    records = torch.randn(pages, PAGE, s.latent + s.turned).to(dtype)
    weight = torch.randn(s.heads, s.plain + s.value, s.latent).mul(s.latent**-0.5).to(dtype)
    q, place = torch.randn(tokens, s.heads, s.plain + s.turned), torch.arange(tokens)
    rows = ChunkRows(
        torch.arange(pages, dtype=torch.int32).unsqueeze(0),
        torch.tensor([keys]),
        torch.tensor([tokens]),
        torch.zeros_like(place),
        place + keys,
    )
    scale = q.shape[2] ** -0.5

    def absorbed() -> Tensor:
        plain, turned = q.split([s.plain, s.turned], 2)
        wide = torch.cat((latent_queries(plain, weight[:, : s.plain]), turned), 2)
        read = latent_attention(wide, records, rows, values=s.latent, scale=scale)
        return tile_linear_grouped(read, weight[:, s.plain :])

    def expanded() -> Tensor:
        flat = records.flatten(0, 1)
        made = tile_linear(flat[:, : s.latent], weight.flatten(0, 1), out_dtype=torch.float32)
        own, values = made.unflatten(1, (s.heads, -1)).split([s.plain, s.value], 2)
        turned = flat[:, s.latent :].float().unsqueeze(1).expand(-1, s.heads, -1)
        # The op has values as wide as keys.
        values = torch.nn.functional.pad(values, (0, q.shape[2] - s.value))
        pools = (
            x.to(dtype).unflatten(0, (pages, PAGE)).contiguous()
            for x in (torch.cat((own, turned), 2), values)
        )
        return grouped_attention(q, next(pools), next(pools), rows, scale=scale)[
            ..., : s.value
        ].flatten(1)

    off = (absorbed() - expanded()).abs().max()
    assert off < (1e-3 if dtype is torch.float32 else 0.1), f"they differ by {off}"
    return _least_ms(absorbed), _least_ms(expanded)


def _least_ms(run: Callable[[], Tensor], times: int = 3) -> float:
    least = math.inf
    for _ in range(times):
        begin = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - begin)
    return 1e3 * least
