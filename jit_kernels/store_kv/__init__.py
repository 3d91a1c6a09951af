"""From numbers to records in pages of the cache at once."""

from collections.abc import Callable

import torch

from jit_kernels.checks import ShapeError, check_dtype, check_shape
from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.kv_records import RECORD_DTYPES, packed_record_bytes
from jit_kernels.paged_rows import PageLayout
from jit_kernels.registry import Backend, select

__all__ = ["norm_rope_store"]

_MODULE = "jit_kernels.store_kv"

_norm_rope_store: Callable[..., None] = select(
    "norm_rope_store",
    [
        Backend("cuda", f"{_MODULE}.cuda_backend:norm_rope_store", why_no_hopper, "cuda"),
        Backend("reference", f"{_MODULE}.reference:norm_rope_store"),
    ],
)


def norm_rope_store(
    pages: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    layout: PageLayout,
    *,
    weight: torch.Tensor,
    rotation: torch.Tensor,
    eps: float,
    record_format: str,
) -> None:
    """Write `encode_records(rope(rms_norm(x, weight)))` to `slots` of `pages`, in place.

    pages          [U, layout.page_bytes] uint8, contiguous; mutated
    slots          [M] int64   page * page_rows + row in the page; rows of a negative slot are left
                               out; repeats only with equal rows
    x              [M, D] float32 or bfloat16; not changed; float32 from the norm to the record
    weight         [D] float32
    rotation       [M, 2, R] float32, as `jit_kernels.rope.rope` takes it; R and D - R even
    record_format  as `jit_kernels.kv_records.encode_records` takes it

    Raises ShapeError before anything is written.
    """
    _check(pages, slots, x, layout)
    check_shape("weight", weight, x.shape[1])
    check_shape("rotation", rotation, x.shape[0], 2, None)
    check_dtype("weight", weight, torch.float32)
    check_dtype("rotation", rotation, torch.float32)
    turned = rotation.shape[2]
    if turned > x.shape[1] or turned % 2 or x.shape[1] % 2:
        raise ShapeError(f"of {x.shape[1]} channels {turned} turn, expected whole pairs")
    _check_record(x.shape[1], turned, record_format, layout)
    _norm_rope_store(pages, slots, x, layout, weight, rotation, eps, record_format)


def _check(
    pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, layout: PageLayout
) -> None:
    check_shape("pages", pages, None, layout.page_bytes)
    check_dtype("pages", pages, torch.uint8)
    if not pages.is_contiguous():
        raise ShapeError("pages is not contiguous")
    check_dtype("slots", slots, torch.int64)
    check_shape("the rows", rows, slots.shape[0], None)
    check_dtype("the rows", rows, torch.float32, torch.bfloat16)


def _check_record(channels: int, turned: int, record_format: str, layout: PageLayout) -> None:
    if record_format == "fp8":
        data, scale = packed_record_bytes(channels, turned)
    else:
        data, scale = channels * RECORD_DTYPES[record_format].itemsize, 0
    if (layout.data_bytes, layout.scale_bytes) != (data, scale):
        raise ShapeError(f"rows of {data} + {scale} bytes do not fit {layout}")
