"""Heads that read latent records: what is stored, absorbed queries, and values of what was read.

All is bfloat16 beside float32 sums, for networks on a GPU. A head's key and value of a position are
products with its record's latent; both products are made on the other side of attention:

    store_latents      made -> [norm(latent), turned]         into pages
    absorbed_queries   q    -> [q_plain keys, turned q]       what records are multiplied with
    latent_values      sums of latents -> values              of each head
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.registry import Backend, select

__all__ = ["LatentNorms", "absorbed_queries", "latent_values", "store_latents"]


def _chosen(op: str) -> Callable[..., torch.Tensor]:
    module = "jit_kernels.latent_heads"
    return select(
        op,
        [
            Backend("triton", f"{module}.triton_backend:{op}", why_no_triton, "cuda"),
            Backend("reference", f"{module}.reference:{op}"),
        ],
    )


_store_latents: Callable[..., torch.Tensor | None] = _chosen("store_latents")
_absorbed_queries = _chosen("absorbed_queries")
_latent_values = _chosen("latent_values")


@dataclass(frozen=True, slots=True)
class LatentNorms:
    """Weights of the norms of latents.

    record  [L] float32, contiguous
    query   [Q] float32, contiguous, of the latent that queries are made of; None: there is none
    eps     of both
    """

    record: torch.Tensor
    query: torch.Tensor | None
    eps: float


def store_latents(
    made: torch.Tensor,
    norms: LatentNorms,
    rotation: torch.Tensor,
    records: torch.Tensor,
    slots: torch.Tensor,
    *,
    halves: bool,
) -> torch.Tensor | None:
    """Norm and turn what tokens leave in a layer, and write it; norm the latents of queries.

    made      [T, C] float32, contiguous   the last L + R channels are the record's, the first Q
              the latent of queries if there is one
    rotation  [T, 2, R] float32, contiguous, as `rope` takes it; with `halves` [T, 2, R / 2], as
              `rope_halves` does
    records   [U, P, L + R] bfloat16, contiguous; mutated
    slots     [T] int64, contiguous   page * P + place of each token; where several tokens have the
              same one, any of them is kept
    halves    channel i turns with channel i + R / 2, else neighbours turn together

    Returns the normed latents of queries, [T, Q] bfloat16, None where `norms` have none. What is
    not finite is stored as 0. Raises ShapeError.
    """
    check_shape("made", made, None, None)
    check_dense("made", made, torch.float32)
    tokens, width = made.shape[0], records.shape[-1]
    check_shape("records", records, None, None, None)
    check_dense("records", records, torch.bfloat16)
    check_dense("norm", norms.record, torch.float32)
    turned = _turned(rotation, tokens, halves=halves)
    check_shape("norm", norms.record, width - turned)
    check_shape("slots", slots, tokens)
    check_dense("slots", slots, torch.int64)
    rank = 0 if norms.query is None else norms.query.shape[0]
    if norms.query is not None:
        check_dense("query norm", norms.query, torch.float32)
    if width + rank > made.shape[1]:
        raise ShapeError(f"{made.shape[1]} channels hold no {width} of records and {rank} others")
    return _store_latents(made, norms, rotation, records, slots, halves)


def absorbed_queries(
    q: torch.Tensor,
    keys: torch.Tensor,
    rotation: torch.Tensor,
    *,
    halves: bool,
    invariant: bool = False,
) -> torch.Tensor:
    """Return what records are multiplied with: `q[:, h, :K] @ keys[h]`, then the others turned.

    q          [T, H, K + R] float32   a token's heads lie one after another, tokens may lie apart
    keys       [H, K, L] bfloat16   channels lie one after another
    rotation   like that of `store_latents`
    invariant  a token's bits depend on its own numbers alone

    Returns [T, H, L + R] bfloat16, contiguous; q is rounded to bfloat16, sums are float32. Raises
    ShapeError.
    """
    check_shape("q", q, None, keys.shape[0], None)
    check_dtype("q", q, torch.float32)
    check_dtype("keys", keys, torch.bfloat16)
    turned = _turned(rotation, q.shape[0], halves=halves)
    check_shape("q", q, None, None, keys.shape[1] + turned)
    if q.stride(2) != 1 or q.stride(1) != q.shape[2] or keys.stride(2) != 1:
        raise ShapeError(f"q and keys have strides {q.stride()} and {keys.stride()}")
    return _absorbed_queries(q, keys, rotation, halves, invariant)


def latent_values(
    read: torch.Tensor, values: torch.Tensor, *, invariant: bool = False
) -> torch.Tensor:
    """Return `read[:, h] @ values[h].T` of all heads, one after another.

    read       [T, H, L] bfloat16, contiguous
    values     [H, V, L] bfloat16   channels lie one after another
    invariant  a token's bits depend on its own numbers alone

    Returns [T, H V] bfloat16, summed in float32. Raises ShapeError.
    """
    check_shape("read", read, None, values.shape[0], values.shape[2])
    check_dense("read", read, torch.bfloat16)
    check_dtype("values", values, torch.bfloat16)
    if values.stride(2) != 1:
        raise ShapeError(f"values have strides {values.stride()}")
    return _latent_values(read, values, invariant)


def _turned(rotation: torch.Tensor, tokens: int, *, halves: bool) -> int:
    """Return how many channels turn. Raises ShapeError."""
    check_shape("rotation", rotation, tokens, 2, None)
    check_dense("rotation", rotation, torch.float32)
    return rotation.shape[2] * (2 if halves else 1)
