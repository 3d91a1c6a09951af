"""Matrix product in tiles of 16 rows, in plain torch.

A matrix product of a fixed shape gives each row the same bits wherever it stands and whatever
the other rows are, if depth and columns are whole vectors; products of other row counts or odd
sizes do not. So every product here has 16 rows, and odd sizes are padded with zeros. On a GPU how
many products there are at once counts as well: there are always as many.
"""

import torch
import torch.nn.functional as F

TILE = 16
VECTOR = 8
# Products at once on a GPU.
BATCH = 8


def tile_linear(x: torch.Tensor, weight: torch.Tensor, out_dtype: torch.dtype) -> torch.Tensor:
    """Return `x @ weight.T` in `out_dtype`; see `jit_kernels.tile_linear.tile_linear`."""
    rows, columns = x.shape[0], weight.shape[0]
    tiles = -(-rows // TILE)
    if not tiles:
        return x.new_empty((0, columns), dtype=out_dtype)
    padded = whole_vectors(x, TILE)
    depth = padded.shape[1]
    wide = whole_vectors(weight)
    product = _products(padded.reshape(tiles, TILE, depth), wide.t())
    return product.flatten(0, 1)[:rows, :columns].to(out_dtype)


def _products(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x [tiles, TILE, K] @ weight [K, N]."""
    tiles = x.shape[0]
    if not x.is_cuda:
        return torch.bmm(x, weight.expand(tiles, *weight.shape))
    weights = weight.expand(BATCH, *weight.shape)
    whole = F.pad(x, (0, 0, 0, 0, 0, -tiles % BATCH))
    return torch.cat([torch.bmm(some, weights) for some in whole.split(BATCH)])[:tiles]


def tile_linear_grouped(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply group by group; see `jit_kernels.tile_linear.tile_linear_grouped`."""
    rows, groups, _ = x.shape
    columns = weight.shape[1]
    if 0 < rows <= TILE and not x.is_cuda:
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
