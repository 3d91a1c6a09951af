"""Heads that read latent records: records stored, queries absorbed, and values of what was read.

All is bfloat16 beside float32 sums, for networks on a GPU; records may be packed. A head's key and
value of a position are products with its record's latent; both products are made on the other side
of attention:

    absorbed_heads   made -> [norm(latent), turned]      into pages
                     q    -> [q_plain keys, turned q]    what records are multiplied with
    latent_values    sums of latents -> values           of each head
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from jit_kernels.checks import ShapeError, check_dense, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_triton
from jit_kernels.latent_records import latent_record_bytes
from jit_kernels.registry import Backend, select

__all__ = ["LatentWeights", "absorbed_heads", "latent_values"]


def _chosen(op: str) -> Callable[..., torch.Tensor]:
    module = "jit_kernels.latent_heads"
    return select(
        op,
        [
            Backend("triton", f"{module}.triton_backend:{op}", why_no_triton, "cuda"),
            Backend("reference", f"{module}.reference:{op}"),
        ],
    )


_absorbed_heads, _latent_values = _chosen("absorbed_heads"), _chosen("latent_values")


@dataclass(frozen=True, slots=True)
class LatentWeights:
    """What queries and records pass on their way.

    keys  [H, K, L]   channels lie one after another
    norm  [L] float32, contiguous   weight of the norm of latents
    eps   of the norm
    """

    keys: torch.Tensor
    norm: torch.Tensor
    eps: float


def absorbed_heads(
    q: torch.Tensor,
    made: torch.Tensor,
    weights: LatentWeights,
    rotation: torch.Tensor,
    records: torch.Tensor,
    slots: torch.Tensor,
    *,
    halves: bool,
    invariant: bool = False,
) -> torch.Tensor:
    """Norm, turn and write what tokens leave in a layer; absorb keys into queries and turn them.

    q          [T, H, K + R] float32   a token's heads lie one after another, tokens may lie apart
    made       [T, L + R] float32   a token's record, not yet normed or turned; tokens may lie apart
    weights    keys in bfloat16
    rotation   [T, 2, R] float32, contiguous, as `rope` takes it; with `halves` [T, 2, R / 2], as
               `rope_halves` does
    records    [U, P, L + R] bfloat16, or [U, P, bytes] uint8 that hold what `encode_latents` makes
               in "fp8"; contiguous; mutated. What is not finite is stored as 0
    slots      [T] int64, contiguous   page * P + place of each token; where several tokens have
               the same one, any of them is kept
    halves     channel i turns with channel i + R / 2, else neighbours turn together
    invariant  a token's bits depend on its own numbers alone

    Returns `[q[:, h, :K] @ keys[h], turned q[:, h, K:]]` of all heads, [T, H, L + R] bfloat16,
    contiguous; q is rounded to bfloat16, sums are float32. Raises ShapeError.
    """
    keys, tokens = weights.keys, q.shape[0]
    check_shape("rotation", rotation, tokens, 2, None)
    check_dense("rotation", rotation, torch.float32)
    turned, latent = rotation.shape[2] * (2 if halves else 1), keys.shape[2]
    check_shape("q", q, None, keys.shape[0], keys.shape[1] + turned)
    check_shape("made", made, tokens, latent + turned)
    for name, given in (("q", q), ("made", made)):
        check_dtype(name, given, torch.float32)
    check_dtype("keys", keys, torch.bfloat16)
    if (q.stride(2), made.stride(1), keys.stride(2)) != (1, 1, 1) or q.stride(1) != q.shape[2]:
        strides = q.stride(), made.stride(), keys.stride()
        raise ShapeError(f"q, made and keys have strides {strides}")
    check_shape("norm", weights.norm, latent)
    check_dense("norm", weights.norm, torch.float32)
    width, packed = latent + turned, records.dtype == torch.uint8
    if packed:
        width = latent_record_bytes(width, record_format="fp8", rope_channels=turned)
    check_shape("records", records, None, None, width)
    check_dense("records", records, torch.uint8 if packed else torch.bfloat16)
    check_shape("slots", slots, tokens)
    check_dense("slots", slots, torch.int64)
    return _absorbed_heads(q, made, weights, rotation, records, slots, halves, invariant)


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
