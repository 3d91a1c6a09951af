"""Matrix product in tiles of 16 rows, in plain torch.

A matrix product of a fixed shape gives each row the same bits wherever it stands and whatever
the other rows are; products of other row counts do not. So every product here has 16 rows.
"""

import torch
import torch.nn.functional as F

TILE = 16


def tile_linear(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Return `x @ weight.T` in `out_dtype`; see `jit_kernels.tile_linear.tile_linear`."""
    rows, depth = x.shape
    columns = weight.shape[0]
    tiles = -(-rows // TILE)
    if not tiles:
        return x.new_empty((0, columns), dtype=out_dtype)
    padded = x.to(torch.float32)
    if rows != tiles * TILE:
        padded = F.pad(padded, (0, 0, 0, tiles * TILE - rows))
    transposed = weight.to(torch.float32).t().expand(tiles, depth, columns)
    product = torch.bmm(padded.reshape(tiles, TILE, depth), transposed)
    return product.view(tiles * TILE, columns)[:rows].to(out_dtype)


def tile_linear_grouped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply group by group; see `jit_kernels.tile_linear.tile_linear_grouped`."""
    rows, groups, _ = x.shape
    if rows <= TILE:
        padded = F.pad(x.to(torch.float32), (0, 0, 0, 0, 0, TILE - rows)).transpose(0, 1)
        product = torch.bmm(padded.contiguous(), weight.to(torch.float32).transpose(1, 2))
        return product.transpose(0, 1)[:rows].flatten(1).to(x.dtype)
    parts = [tile_linear(x[:, group], weight[group], x.dtype) for group in range(groups)]
    return torch.cat(parts, 1)
