"""Attention of heads that all read one packed record a position, over the positions they name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from jit_kernels.checks import ShapeError, check_dense, check_shape
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_flash_mla

__all__ = ["HEADS", "KEY_TILE", "LATENT", "RECORD_BYTES", "WIDTH", "SparsePlan", "paged_sparse"]

# Channels of a record, those that are read as the value, and its bytes (`latent_records`, fp8).
WIDTH, LATENT, RECORD_BYTES = 576, 512, 656
HEADS = 128
KEY_TILE = 64

_MODULE = "jit_kernels.paged_sparse"
_paged_sparse: Callable[..., torch.Tensor] = select(
    "paged_sparse",
    [
        Backend("flash_mla", f"{_MODULE}.flash_mla_backend:paged_sparse", why_no_flash_mla, "cuda"),
        Backend("reference", f"{_MODULE}.reference:paged_sparse"),
    ],
)


@dataclass(slots=True, eq=False)
class SparsePlan:
    """How the calls of one step divide the keys among the device's processors.

    Calls of one step whose slots have the same shape share a plan: the first fills it by launches
    of its own, which are then part of a CUDA graph that is being captured. So a plan is made inside
    the capture, and never outlives its step or graph.
    """

    held: dict[Any, Any] = field(default_factory=dict[Any, Any])


def paged_sparse(
    q: torch.Tensor,
    records: torch.Tensor,
    slots: torch.Tensor,
    *,
    scale: float,
    plan: SparsePlan | None = None,
    invariant: bool = False,
) -> torch.Tensor:
    """Return `softmax(scale * q . record) @ record[:512]` over the records that tokens name.

    q          [T, H, 576] bfloat16, contiguous, H at most 128
    records    [U, P, 656] uint8, contiguous   as `encode_latents` makes them in "fp8"
    slots      [T, K] int32, contiguous, K a multiple of 64   page * P + place; -1: none
    plan       shared by calls alike; None: this call is the only one of its kind
    invariant  a token's bits depend on its own q and records alone; slower where tokens are few

    Returns [T, H, 512] bfloat16, float32 inside; zeros for a token that names none. Nothing waits
    for the device. Raises ShapeError.
    """
    check_shape("q", q, None, None, WIDTH)
    check_dense("q", q, torch.bfloat16)
    tokens, heads = q.shape[0], q.shape[1]
    if heads > HEADS:
        raise ShapeError(f"q has {heads} heads, expected at most {HEADS}")
    check_shape("records", records, None, None, RECORD_BYTES)
    check_dense("records", records, torch.uint8)
    check_shape("slots", slots, tokens, None)
    check_dense("slots", slots, torch.int32)
    if slots.shape[1] % KEY_TILE or not slots.shape[1]:
        raise ShapeError(f"slots has {slots.shape[1]} columns, expected a multiple of {KEY_TILE}")
    return _paged_sparse(q, records, slots, scale, plan or SparsePlan(), invariant)
