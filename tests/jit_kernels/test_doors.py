"""What kernels are told by address alone is refused at the door if it lies or counts otherwise."""

from collections.abc import Callable

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.hyper_connection import mhc_head, mhc_post_pre_norm
from jit_kernels.paged_rows import PageLayout, gather_rows, store_rows
from jit_kernels.q_norm_rope import q_norm_rope
from jit_kernels.quant_fp8 import norm_quant
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rope
from jit_kernels.route_topk import route_topk
from jit_kernels.sparse_attention import sparse_attention
from jit_kernels.store_kv import norm_rope_store

LAYOUT = PageLayout(page_rows=4, data_bytes=8, scale_bytes=0, page_bytes=32)
MIXING = {"norm_eps": 1e-6, "hc_eps": 1e-6}
HALF = torch.bfloat16


def _rows(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _store(pages: torch.Tensor, slots: torch.Tensor) -> None:
    store_rows(pages, slots, torch.ones(len(slots), 8, dtype=torch.uint8), LAYOUT)


def _store_normed(weight: torch.Tensor, rotation: torch.Tensor) -> None:
    layout = PageLayout(page_rows=4, data_bytes=32, scale_bytes=0, page_bytes=128)
    pages, slots = torch.zeros(2, 128, dtype=torch.uint8), torch.arange(3)
    turned: dict[str, torch.Tensor] = {"weight": weight, "rotation": rotation}
    norm_rope_store(pages, slots, _rows(3, 8), layout, **turned, eps=1e-6, record_format="fp32")


CALLS: dict[str, Callable[[], object]] = {
    "rope: heads apart": lambda: rope(_rows(4, 3, 8).transpose(0, 1), _rows(3, 2, 4)),
    "rope: rotation": lambda: rope(_rows(3, 2, 8), _rows(3, 2, 4).to(HALF)),
    "rope: more turn": lambda: rope(_rows(2, 1, 2), _rows(2, 2, 6)),
    "pages apart": lambda: _store(torch.zeros(8, 64, dtype=torch.uint8)[:, :32], torch.arange(2)),
    "slots": lambda: _store(torch.zeros(8, 32, dtype=torch.uint8), torch.arange(2).int()),
    "pages read apart": lambda: gather_rows(
        torch.zeros(8, 64, dtype=torch.uint8)[:, :32], torch.arange(2), LAYOUT
    ),
    "mhc_post_pre_norm: fn": lambda: mhc_post_pre_norm(
        *(_rows(3, 16), _rows(3, 4, 16), _rows(3, 5, 4)),
        *(_rows(64, 24).T, _rows(24), _rows(3), _rows(16)),
        iterations=2,
        **MIXING,
    ),
    "mhc_post_pre_norm: shares": lambda: mhc_post_pre_norm(
        *(_rows(3, 16), _rows(3, 4, 16), _rows(3, 5, 4).to(HALF)),
        *(_rows(24, 64), _rows(24), _rows(3), _rows(16)),
        iterations=2,
        **MIXING,
    ),
    "mhc_head: base": lambda: mhc_head(
        _rows(3, 4, 16), _rows(4, 64), _rows(4).to(HALF), _rows(1), **MIXING
    ),
    "rms_norm: dtype": lambda: rms_norm(_rows(3, 8), _rows(8).to(HALF), eps=1e-6),
    "rms_norm: stride": lambda: rms_norm(_rows(3, 8), _rows(16)[::2], eps=1e-6),
    "norm_quant": lambda: norm_quant(_rows(3, 128), _rows(128).to(HALF), eps=1e-6),
    "q_norm_rope": lambda: q_norm_rope(_rows(3, 2, 8), _rows(3, 2, 4).to(HALF), eps=1e-6),
    "sink": lambda: sparse_attention(
        _rows(2, 8, 16), _rows(5, 16), torch.zeros(2, 64).long(), sink=_rows(16)[::2], scale=1.0
    ),
    "route_topk: bias": lambda: route_topk(_rows(2, 4), _rows(4).to(HALF), top_k=2, scale=1.0),
    "route_topk: k": lambda: route_topk(_rows(2, 4), _rows(4), top_k=5, scale=1.0),
    "store: weight": lambda: _store_normed(_rows(8).to(HALF), _rows(3, 2, 4)),
    "store: rotation": lambda: _store_normed(_rows(8), _rows(3, 2, 4).to(HALF)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_lies_otherwise_is_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ShapeError):
        call()
