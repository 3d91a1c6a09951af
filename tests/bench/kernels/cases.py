"""The ops at the shapes of V4-Flash and V4-Pro, at few tokens and at many."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from jit_kernels.expert_blocks import expert_blocks
from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_post_pre_norm
from jit_kernels.likeliest import likeliest
from jit_kernels.mask_logits import mask_logits
from jit_kernels.paged_rows import PageLayout
from jit_kernels.q_norm_rope import q_norm_rope
from jit_kernels.quant_fp8 import norm_quant, quantise_rows, silu_mul_quant
from jit_kernels.rms_norm import rms_norm
from jit_kernels.route_topk import route_hashed, route_topk
from jit_kernels.sample import DrawParams, sample_unread
from jit_kernels.select_topk import select_topk
from jit_kernels.store_kv import norm_rope_store
from tests.bench.kernels.case import FEW, LIMITS, MANY, Case, Limit

__all__ = ["cases"]

EPS = {"norm_eps": 1e-6, "hc_eps": 1e-6}
SWA = PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37440)
# Rows, scores of a row, how many are chosen, and what it is held to.
SELECTIONS = [
    (1, 250_000, 512, Limit(time_us=15.0)),
    (1, 250_000, 1024, Limit()),
    (64, 250_000, 512, Limit(share=1 / 2.5)),
    (64, 16_384, 512, Limit()),
    (64, 2_048, 512, Limit()),
    (4_096, 16_384, 512, Limit()),
]

# Rows, and top-p of each.
DRAWS = [(1, 1.0), (64, 1.0), (1, 0.95), (64, 0.95)]
VOCAB = 129_280

Prepare = Callable[[], Callable[[], Any]]


def cases(tokens: tuple[int, ...] = (FEW, MANY)) -> Iterator[Case]:
    """Yield every case; `tokens` takes the place of the two sizes of a batch."""
    for count in tokens:
        limit = LIMITS.get(count, Limit())
        for op, shape, moved, prepare in _all_of(count):
            yield Case(op, f"T={count} {shape}", moved, prepare, limit)
        # A chain of counts and sums: no copy is like it.
        shape, moved = f"T={count} E=256 k=6", count * 6 * (8 + 12)
        yield Case("expert_blocks", shape, moved, _sorting(count), Limit())
    for rows, columns, top_k, limit in SELECTIONS:
        moved = 4 * rows * columns + 8 * rows * top_k
        shape = f"T={rows} B={columns} k={top_k}"
        yield Case("select_topk", shape, moved, _selection(rows, columns, top_k), limit)
    for rows, top_p in DRAWS:
        shape = f"T={rows} V={VOCAB} p={top_p:g}"
        yield Case("sample_unread", shape, rows * (4 * VOCAB + 8), _draw(rows, top_p), Limit())
    for rows in (1, 64):
        shape = f"T={rows} V={VOCAB}"
        yield Case("likeliest", shape, rows * (4 * VOCAB + 8), _likeliest(rows), Limit())
        # Most tokens are left out, as amid the keys of an object.
        yield Case("mask_logits", shape, rows * (4 * VOCAB + VOCAB // 8), _masked(rows), Limit())


def _all_of(tokens: int) -> Iterator[tuple[str, str, int, Prepare]]:
    yield from _streams(tokens)
    yield from _rows(tokens)
    moved = 4 * tokens * 64 * 512 + tokens * 2 * 64 * 4
    yield "q_norm_rope", "H=64 C=512", moved, _heads(tokens)
    moved = tokens * (1024 + 584 + 8 + 512) + 2048
    yield "norm_rope_store", "C=512", moved, _storing(tokens)
    for experts in (256, 384):
        yield "route_topk", f"E={experts}", tokens * (4 * experts + 72), _routing(tokens, experts)
    yield "route_hashed", "E=256", tokens * (8 + 6 * (32 + 8 + 8 + 4)), _hashed(tokens)


def _streams(tokens: int) -> Iterator[tuple[str, str, int, Prepare]]:
    width = 4096
    # Of `fn` two bytes a number are read: see `mix_rows`.
    stream, small, fn = 2 * tokens * width, tokens * 20 * 4, 2 * 24 * 4 * width
    moved = {
        "mhc_post_pre_norm": 10 * stream + fn + 2 * small,
        "mhc_head": 5 * stream + fn // 6,
        "mhc_post": 9 * stream + small,
    }
    for (op, size), prepare in zip(moved.items(), _mixes(tokens, width), strict=True):
        yield op, f"d={width}", size, prepare


def _mixes(tokens: int, width: int) -> tuple[Prepare, Prepare, Prepare]:
    def inputs(rows: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        x = torch.randn(tokens, 4, width, dtype=torch.bfloat16)
        fn = torch.randn(rows, 4 * width) * 0.01
        return x, fn, torch.randn(rows), torch.randn(3 if rows == 24 else 1)

    def owed() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, x = torch.randn(tokens, width, dtype=torch.bfloat16), inputs()[0]
        return y, x, torch.rand(tokens, 5, 4) / 4

    def post_pre_norm() -> Callable[[], Any]:
        mine, weights, gain = owed(), inputs()[1:], torch.randn(width)
        return lambda: mhc_post_pre_norm(*mine, *weights, gain, iterations=20, **EPS)

    def head() -> Callable[[], Any]:
        mine = inputs(rows=4)
        return lambda: mhc_head(*mine, **EPS)

    def post() -> Callable[[], Any]:
        mine = owed()
        return lambda: mhc_post(*mine)

    return post_pre_norm, head, post


def _rows(tokens: int) -> Iterator[tuple[str, str, int, Prepare]]:
    def on(width: int, use: Callable[[torch.Tensor], Any]) -> Prepare:
        def prepare() -> Callable[[], Any]:
            x = torch.randn(tokens, width, dtype=torch.bfloat16)
            return lambda: use(x)

        return prepare

    for width in (1536, 4096, 7168):
        size, scales = tokens * width, 4 * tokens * width // 128
        weight = torch.randn(width)
        normed = on(width, lambda x, weight=weight: rms_norm(x, weight, eps=1e-6))
        yield "rms_norm", f"C={width}", 4 * size + 4 * width, normed
        both = on(width, lambda x, weight=weight: norm_quant(x, weight, eps=1e-6))
        yield "norm_quant", f"C={width}", 3 * size + scales + 4 * width, both
        yield "quantise_rows", f"C={width}", 3 * size + scales, on(width, quantise_rows)
    for inner in (2048, 3072):
        size = tokens * inner
        rounded = on(2 * inner, lambda x: silu_mul_quant(x, limit=10.0))
        yield "silu_mul_quant", f"I={inner}", 5 * size + 4 * size // 128, rounded


def _heads(tokens: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        q = torch.randn(tokens, 64, 512, dtype=torch.bfloat16)
        rotation = torch.randn(tokens, 2, 64)
        return lambda: q_norm_rope(q, rotation, eps=1e-6)

    return prepare


def _storing(tokens: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        units = -(-tokens // SWA.page_rows)
        pages = torch.zeros((units, SWA.page_bytes), dtype=torch.uint8)
        slots = torch.randperm(units * SWA.page_rows)[:tokens]
        kv = torch.randn(tokens, 512, dtype=torch.bfloat16)
        more = {"weight": torch.randn(512), "rotation": torch.randn(tokens, 2, 64)}
        return lambda: norm_rope_store(pages, slots, kv, SWA, **more, eps=1e-6, record_format="fp8")

    return prepare


def _routing(tokens: int, experts: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        logits, bias = torch.randn(tokens, experts), torch.randn(experts)
        return lambda: route_topk(logits, bias, top_k=6, scale=1.5)

    return prepare


def _sorting(tokens: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        experts = torch.rand(tokens, 256).argsort(1)[:, :6].contiguous()
        size = 16 if tokens <= FEW else 128
        return lambda: expert_blocks(experts, num_experts=256, size=size)

    return prepare


def _hashed(tokens: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        logits, table = torch.randn(tokens, 256), torch.randint(256, (129_280, 6))
        ids = torch.randint(129_280, (tokens,))
        return lambda: route_hashed(logits, table, ids, scale=1.5)

    return prepare


def _selection(rows: int, columns: int, top_k: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        scores = torch.randn(rows, columns)
        visible = torch.full((rows,), columns, dtype=torch.int64)
        return lambda: select_topk(scores, visible, top_k=top_k)

    return prepare


def _draw(rows: int, top_p: float) -> Prepare:
    def prepare() -> Callable[[], Any]:
        logits, keys = torch.randn(rows, VOCAB) * 3, torch.randint(2**62, (rows,))
        all_kept = torch.full((rows,), VOCAB, dtype=torch.int64)
        ones, zeros = torch.ones(rows), torch.zeros(rows)
        params = DrawParams(ones, all_kept, ones * top_p, zeros, draws=True, filters=top_p < 1)
        return lambda: sample_unread(logits, params, keys)

    return prepare


def _likeliest(rows: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        logits, out = torch.randn(rows, VOCAB), torch.zeros(rows, dtype=torch.int64)
        return lambda: likeliest(logits, out=out)

    return prepare


def _masked(rows: int) -> Prepare:
    def prepare() -> Callable[[], Any]:
        logits, every = torch.randn(rows, VOCAB), torch.arange(rows)
        masks = torch.zeros((rows, VOCAB // 32), dtype=torch.int32)
        masks[:, ::100] = 1
        return lambda: mask_logits(logits, every, masks)

    return prepare
