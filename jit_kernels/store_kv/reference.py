"""Encoding and storing, as the references after each other."""

import torch

from jit_kernels.indexer_keys.reference import encode_keys, hadamard
from jit_kernels.kv_records.reference import encode_records
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import store_rows
from jit_kernels.rms_norm.reference import rms_norm
from jit_kernels.rope.reference import rope


def store_records(
    pages: torch.Tensor,
    slots: torch.Tensor,
    kv: torch.Tensor,
    layout: PageLayout,
    record_format: str,
    rope_channels: int,
) -> None:
    """Write `encode_records(kv)` to `slots` of `pages`; rows of a negative slot are left out."""
    kept = slots >= 0
    store_rows(pages, slots[kept], encode_records(kv[kept], record_format, rope_channels), layout)


def norm_rope_store(
    pages: torch.Tensor,
    slots: torch.Tensor,
    x: torch.Tensor,
    layout: PageLayout,
    weight: torch.Tensor,
    rotation: torch.Tensor,
    eps: float,
    record_format: str,
) -> None:
    """Norm, rotate, encode and store; see `jit_kernels.store_kv.norm_rope_store`."""
    kv = rms_norm(x, weight, eps, torch.float32)
    rope(kv.unsqueeze(1), rotation, False)
    store_records(pages, slots, kv, layout, record_format, rotation.shape[2])


def store_keys(
    pages: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    layout: PageLayout,
    record_format: str,
) -> None:
    """Write keys to `slots` of `pages`, those of fp8 transformed; see `store_records`."""
    kept = slots >= 0
    keys = hadamard(keys[kept]) if record_format == "fp8" else keys[kept]
    store_rows(pages, slots[kept], encode_keys(keys, record_format), layout)
