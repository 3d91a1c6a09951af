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
