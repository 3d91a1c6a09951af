"""Matrix product in tiles of 16 rows, in plain torch.

A matrix product of a fixed shape gives each row the same bits wherever it stands and whatever
the other rows are, if depth and columns are whole vectors; products of other row counts or odd
sizes do not. So every product here has 16 rows, and odd sizes are padded with zeros.
"""

import torch
import torch.nn.functional as F

TILE = 16
VECTOR = 8


def tile_linear(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Return `x @ weight.T` in `out_dtype`; see `jit_kernels.tile_linear.tile_linear`."""
    rows, columns = x.shape[0], weight.shape[0]
    tiles = -(-rows // TILE)
    if not tiles:
        return x.new_empty((0, columns), dtype=out_dtype)
    padded = whole_vectors(x, TILE)
    depth = padded.shape[1]
    wide = whole_vectors(weight)
    transposed = wide.t().expand(tiles, depth, wide.shape[0])
    product = torch.bmm(padded.reshape(tiles, TILE, depth), transposed)
    return product.flatten(0, 1)[:rows, :columns].to(out_dtype)


def tile_linear_grouped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply group by group; see `jit_kernels.tile_linear.tile_linear_grouped`."""
    rows, groups, _ = x.shape
    columns = weight.shape[1]
    if 0 < rows <= TILE:
        padded = whole_vectors(x.transpose(0, 1).contiguous(), TILE)
        product = torch.bmm(padded, whole_vectors(weight).transpose(1, 2))
        return product.transpose(0, 1)[:rows, :, :columns].flatten(1).to(x.dtype)
    parts = [tile_linear(x[:, group], weight[group], x.dtype) for group in range(groups)]
    return torch.cat(parts, 1)


def whole_vectors(x: torch.Tensor, rows: int = VECTOR) -> torch.Tensor:
    """Return `x` in float32, zeros added: the last axis to 8 n, the one before to `rows` n."""
    wide = x.to(torch.float32)
    below, right = -x.shape[-2] % rows, -x.shape[-1] % VECTOR
    return F.pad(wide, (0, right, 0, below)) if below or right else wide
