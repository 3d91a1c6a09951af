"""Queries through the weights of keys in plain torch: products of 16 rows, as in tile_linear."""

import torch

from jit_kernels.tile_linear.reference import TILE, whole_vectors


def latent_queries(q: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Multiply head by head; see `jit_kernels.latent_queries.latent_queries`."""
    tokens, heads, _ = q.shape
    wide, rows = whole_vectors(keys), whole_vectors(q.transpose(0, 1).contiguous(), TILE)
    tiles = rows.shape[1] // TILE
    # A product of one shape for every 16 tokens of a head.
    shared = wide.unsqueeze(1).expand(heads, tiles, *wide.shape[1:]).flatten(0, 1)
    product = torch.bmm(rows.unflatten(1, (tiles, TILE)).flatten(0, 1), shared)
    return product.view(heads, tiles * TILE, -1)[:, :tokens, : keys.shape[2]].transpose(0, 1)
