"""Indexer keys and queries whose first channels turn: what DeepSeek V3.2 chooses positions by.

store_index_keys   keys    -> turned, transformed (Hadamard), e4m3   into pages
index_queries      queries -> turned, transformed, e4m3              as scores take them
"""

from collections.abc import Callable
from typing import Any

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.indexer_queries import HEADS, WIDTHS
from jit_kernels.paged_logits import check_key_pages
from jit_kernels.paged_rows import PageLayout
from jit_kernels.registry import Backend, select

__all__ = ["index_queries", "store_index_keys"]


def _chosen(op: str) -> Callable[..., Any]:
    module = "jit_kernels.sparse_index"
    return select(
        op,
        [
            Backend("triton", f"{module}.triton_backend:{op}", why_no_triton, "cuda"),
            Backend("reference", f"{module}.reference:{op}"),
        ],
    )


_store_index_keys, _index_queries = _chosen("store_index_keys"), _chosen("index_queries")


def store_index_keys(
    pages: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    rotation: torch.Tensor,
    layout: PageLayout,
    *,
    halves: bool,
) -> None:
    """Write `encode_keys(hadamard(turned keys))` to `slots` of `pages`, in place.

    pages     [U, layout.page_bytes] uint8, contiguous; mutated   64 fp8 indexer keys each
    slots     [T] int64, contiguous   page * 64 + place of each token; where several tokens have the
              same one, any of them is kept, or parts of several
    keys      [T, C] float32, contiguous, C one of 32, 64, 128; not changed
    rotation  [T, 2, R] float32, contiguous, as `rope` takes it; with `halves` [T, 2, R / 2], as
              `rope_halves` does
    halves    of the first R channels, channel i turns with channel i + R / 2, else neighbours do

    A token's bits depend on its own numbers alone. Raises ShapeError.
    """
    tokens, width = keys.shape
    check_dense("keys", keys, torch.float32)
    check_key_pages(pages, layout, width)
    check_shape("slots", slots, tokens)
    check_dense("slots", slots, torch.int64)
    _check_turn(tokens, width, rotation, halves=halves)
    _store_index_keys(pages, slots, keys, rotation, layout, halves)


def index_queries(
    q: torch.Tensor, weights: torch.Tensor, rotation: torch.Tensor, *, halves: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn queries, transform them (Hadamard), round them to e4m3 with one scale a head.

    q         [T, H, C] float32, contiguous, H at most 64, C one of 32, 64, 128; not changed
    weights   [T, H] float32   of the heads; may be negative; tokens may be strided
    rotation  at each token's position, as for `store_index_keys`
    halves    as for `store_index_keys`

    Returns (codes [T, P, C] float8_e4m3fn, weights * scales [T, P] float32), P being 32 or 64:
    heads that are added have codes and weights of zero. A token's bits depend on its own numbers
    alone. Raises ShapeError.
    """
    tokens, heads, width = q.shape
    check_dense("q", q, torch.float32)
    check_shape("weights", weights, tokens, heads)
    check_dtype("weights", weights, torch.float32)
    if weights.stride(1) != 1 or not 0 < heads <= HEADS[-1]:
        raise ShapeError(f"{heads} heads, expected at most {HEADS[-1]}, weights side by side")
    _check_turn(tokens, width, rotation, halves=halves)
    return _index_queries(q, weights, rotation, halves)


def _check_turn(tokens: int, width: int, rotation: torch.Tensor, *, halves: bool) -> None:
    check_shape("rotation", rotation, tokens, 2, None)
    check_dense("rotation", rotation, torch.float32)
    turned = rotation.shape[2] * (2 if halves else 1)
    if width not in WIDTHS or turned > width or turned % 2:
        raise ShapeError(
            f"of {width} channels {turned} turn, expected whole pairs of one of {WIDTHS}"
        )
