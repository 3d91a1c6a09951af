"""Attention of decoding rows over packed records, where they lie in their pages."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_nvcc
from jit_kernels.paged_rows import PageLayout
from jit_kernels.registry import Backend, select
from jit_kernels.vendor_library import why_no_flash_mla

__all__ = [
    "HEADS",
    "KEY_TILE",
    "RECORD_BYTES",
    "WIDTH",
    "PagedKeys",
    "SplitPlan",
    "paged_attention",
]

HEADS = 128
WIDTH = 512
KEY_TILE = 64
# Data and scale bytes of a packed record of 448 + 64 channels.
RECORD_BYTES = (576, 8)


@dataclass(slots=True, eq=False)
class SplitPlan:
    """How the calls of one step divide the keys among the device's processors.

    Calls of one step whose sets have the same shapes and lengths (the layers of one kind) share a
    plan: the first fills it by a launch of its own, which is then part of a CUDA graph that is
    being captured. So a plan is made inside the capture, and never outlives its step or graph.
    """

    held: dict[str, Any] = field(default_factory=dict[str, Any])


def _why_no_few_rows() -> str | None:
    # It leaves to FlashMLA what it does not take.
    return why_no_flash_mla() or why_no_nvcc()


_MODULE = "jit_kernels.paged_attention"
_FEW_ROWS = f"{_MODULE}.few_rows_backend:paged_attention"
_FLASH_MLA = f"{_MODULE}.flash_mla_backend:paged_attention"
_paged_attention: Callable[..., torch.Tensor] = select(
    "paged_attention",
    [
        Backend("few_rows", _FEW_ROWS, _why_no_few_rows, "cuda"),
        Backend("flash_mla", _FLASH_MLA, why_no_flash_mla, "cuda"),
        Backend("reference", f"{_MODULE}.reference:paged_attention"),
    ],
)


@dataclass(frozen=True, slots=True)
class PagedKeys:
    """Keys that rows name in the pages of one pool and layer.

    pages    [U, layout.page_bytes] uint8, contiguous   packed records of 448 + 64 channels
    layout   576 data and 8 scale bytes a record
    slots    [B, K] int32, K a multiple of 64   page * page_rows + row in the page; -1: no key
    lengths  [B] int32   slots [0, lengths) are read, what stands after them may be anything;
                         None: all K
    """

    pages: torch.Tensor
    layout: PageLayout
    slots: torch.Tensor
    lengths: torch.Tensor | None = None


def paged_attention(
    q: torch.Tensor,
    window: PagedKeys,
    extra: PagedKeys | None,
    *,
    sink: torch.Tensor,
    scale: float,
    plan: SplitPlan | None = None,
    deterministic: bool = False,
) -> torch.Tensor:
    """Return `softmax(scale * q . keys, sink) @ keys` over both sets; keys are the values too.

    q              [B, H, 512] bfloat16, H at most 128
    window, extra  keys of each row; a set may name none, and a row without keys gives zeros
    sink           [H] float32   one more logit in the denominator, without a value
    plan           shared by calls alike; None: this call is the only one of its kind
    deterministic  a row's bits depend on its own q and keys alone; slower where rows are few

    Returns [B, H, 512] bfloat16, float32 inside. Raises ShapeError.
    Source: layers/NETWORK.md, 3.
    """
    check_shape("q", q, None, None, WIDTH)
    check_dtype("q", q, torch.bfloat16)
    rows, heads = q.shape[0], q.shape[1]
    if heads > HEADS:
        raise ShapeError(f"q has {heads} heads, expected at most {HEADS}")
    check_shape("sink", sink, heads)
    check_dtype("sink", sink, torch.float32)
    _check_keys("window", window, rows)
    if extra is not None:
        _check_keys("extra", extra, rows)
    return _paged_attention(q, window, extra, sink, scale, plan or SplitPlan(), deterministic)


def _check_keys(name: str, keys: PagedKeys, rows: int) -> None:
    check_shape(f"{name}.pages", keys.pages, None, keys.layout.page_bytes)
    check_dtype(f"{name}.pages", keys.pages, torch.uint8)
    check_shape(f"{name}.slots", keys.slots, rows, None)
    check_dtype(f"{name}.slots", keys.slots, torch.int32)
    if not keys.pages.is_contiguous() or keys.slots.stride(1) != 1:
        raise ShapeError(f"{name}: pages and rows of slots must be contiguous")
    if (keys.layout.data_bytes, keys.layout.scale_bytes) != RECORD_BYTES:
        raise ShapeError(f"{name}: packed records have 576 + 8 bytes, not those of {keys.layout}")
    if keys.slots.shape[1] % KEY_TILE or not keys.slots.shape[1]:
        columns = keys.slots.shape[1]
        raise ShapeError(f"{name} has {columns} slots, expected a multiple of {KEY_TILE}")
    if keys.lengths is not None:
        check_shape(f"{name}.lengths", keys.lengths, rows)
        check_dtype(f"{name}.lengths", keys.lengths, torch.int32)
