"""Ops beside `sgl_kernel`, which has them too: `python -m tests.bench.kernels.vendor_cases`.

Each case is one op of ours and the vendor's call that does the same work, on the same inputs in the
layout that each wants. What multiplies and what attends has vendors of its own, in `gemm_cases` and
`attention_cases`.
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from jit_kernels.expert_blocks import block_limit, expert_blocks
from jit_kernels.indexer_queries import indexer_queries
from jit_kernels.paged_rows import PageLayout
from jit_kernels.quant_fp8 import quantise_rows
from jit_kernels.registry import chosen
from jit_kernels.rms_norm import rms_norm
from jit_kernels.rope import rotations
from jit_kernels.select_topk import select_topk
from jit_kernels.store_kv import norm_rope_store
from tests.bench.kernels.case import FEW, MANY
from tests.bench.kernels.rows import MOVED, add_rows
from tests.bench.kernels.timing import copy_bandwidth, copy_us, graph_us, input_sets

__all__ = ["Pair", "VendorCase", "vendor_cases"]

PAGE_ROWS = 64
RECORDS = PageLayout(page_rows=PAGE_ROWS, data_bytes=576, scale_bytes=8, page_bytes=37440)
EXPERTS, CHOSEN = 256, 6
EPS = 1e-6
# The only floor that the vendor takes; ours, 1e-4, is below all groups here.
LEAST_AMAX, LARGEST_CODE = 1e-10, 448.0
# Largest share of results that may differ, by sums in another order.
ALIKE = 0.01


@dataclass(frozen=True, slots=True)
class Pair:
    """One set of inputs, and both calls that use it.

    ours, vendor  run one launch or a few, and return what they made
    differ        runs both, and returns the share of results that are not alike
    """

    ours: Callable[[], Any]
    vendor: Callable[[], Any]
    differ: Callable[[], float]


@dataclass(frozen=True, slots=True)
class VendorCase:
    """An op at one shape.

    moved_bytes  every input read once and every output written once
    prepare      makes fresh inputs on the default device
    """

    op: str
    shape: str
    moved_bytes: int
    prepare: Callable[[], Pair]


def vendor_cases(tokens: tuple[int, ...] = (FEW, MANY)) -> Iterator[VendorCase]:
    """Yield every case, at so many tokens each."""
    for count in tokens:
        name = f"T={count}"
        stored = count * (1024 + 584 + 256 + 8)
        yield VendorCase("norm_rope_store", f"{name} C=512", stored, lambda n=count: _stored(n))
        turned = count * 64 * (3 * 128 + 6) + count * 256
        yield VendorCase("indexer_queries", f"{name} H=64", turned, lambda n=count: _queries(n))
        for width in (1536, 4096, 7168):
            size = count * width
            shape = f"{name} C={width}"
            yield VendorCase("rms_norm", shape, 4 * size, lambda n=count, c=width: _normed(n, c))
            moved = 3 * size + size // 32
            yield VendorCase("quantise_rows", shape, moved, lambda n=count, c=width: _rounded(n, c))
        shape = f"{name} E={EXPERTS} k={CHOSEN}"
        yield VendorCase("expert_blocks", shape, count * CHOSEN * 12, lambda n=count: _sorted(n))
        # What the vendor's selection is made for.
        rows, blocks = max(1, count // 256), 32_768
        moved = rows * (4 * blocks + 8 * 2048)
        shape = f"T={rows} B={blocks} k=2048"
        yield VendorCase("select_topk", shape, moved, lambda n=rows, b=blocks: _chosen(n, b))


def _vendor() -> Any:
    """Return the vendor's module; it wants a GPU as soon as it is imported."""
    return importlib.import_module("sgl_kernel")


def _share(different: torch.Tensor) -> float:
    return float(different.float().mean())


def _turns(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return rotations of V4's last 64 channels, the vendor's table of them, and places in it."""
    angles = (10_000.0 ** -(torch.arange(32) / 32)).repeat_interleave(2)
    turns = rotations(torch.arange(tokens), angles)
    table = torch.stack((turns[:, 0, ::2], turns[:, 1, 1::2]), -1).flatten(1).contiguous()
    return turns, table, torch.arange(tokens, dtype=torch.int32)


def _stored(tokens: int) -> Pair:
    kv = torch.randn(tokens, 512, dtype=torch.bfloat16)
    weight = torch.rand(512, dtype=torch.bfloat16) + 0.5
    turns, table, positions = _turns(tokens)
    units = -(-tokens // PAGE_ROWS)
    mine = torch.zeros((units, RECORDS.page_bytes), dtype=torch.uint8)
    theirs = mine.clone()
    slots = torch.randperm(units * PAGE_ROWS)[:tokens]
    narrow, wide = slots.to(torch.int32), weight.float()
    more: dict[str, Any] = {"weight": wide, "rotation": turns, "record_format": "fp8"}

    def ours() -> None:
        norm_rope_store(mine, slots, kv, RECORDS, **more, eps=EPS)

    def vendor() -> None:
        store = _vendor().dsv4_fused_k_norm_rope_flashmla
        store(kv, weight, table, positions, narrow, theirs, EPS, PAGE_ROWS)

    def differ() -> float:
        ours()
        vendor()
        return _share(mine != theirs)

    return Pair(ours, vendor, differ)


def _queries(tokens: int) -> Pair:
    heads, width = 64, 128
    q = torch.randn(tokens, heads, width, dtype=torch.bfloat16)
    weights = torch.randn(tokens, heads, dtype=torch.bfloat16)
    turns, table, positions = _turns(tokens)
    codes = torch.empty(q.shape, dtype=torch.float8_e4m3fn)
    scaled = torch.empty(tokens, heads, 1)
    scale = (heads * width) ** -0.5

    def ours() -> tuple[torch.Tensor, torch.Tensor]:
        return indexer_queries(q, weights, turns)

    def vendor() -> tuple[torch.Tensor, torch.Tensor]:
        turn = _vendor().dsv4_fused_q_indexer_rope_hadamard_quant
        turn(q, codes, weights, scaled, scale, table, positions)
        return codes, scaled

    def differ() -> float:
        # Scales are of another kind: what they make of codes is alike.
        (a, x), (b, y) = ours(), vendor()
        return _rounding(a.float() * x.unsqueeze(2), b.float() * y)

    return Pair(ours, vendor, differ)


def _rounding(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the share of numbers that two roundings to e4m3 do not explain."""
    reach = mine.abs().amax(-1, keepdim=True)
    return _share((mine - theirs).abs() > 0.13 * mine.abs() + 2**-8 * reach)


def _normed(tokens: int, width: int) -> Pair:
    x = torch.randn(tokens, width, dtype=torch.bfloat16)
    weight = torch.rand(width, dtype=torch.bfloat16) + 0.5
    wide, out = weight.float(), torch.empty_like(x)

    def ours() -> torch.Tensor:
        return rms_norm(x, wide, eps=EPS)

    def vendor() -> torch.Tensor:
        return _vendor().rmsnorm(x, weight, EPS, out)

    return Pair(ours, vendor, lambda: _share((ours() - vendor()).abs() > 2**-6))


def _columns(rows: int, groups: int) -> torch.Tensor:
    """Return scales that lie column by column, each column at a multiple of four numbers."""
    return torch.empty(groups, -(-rows // 4) * 4).t()[:rows]


def _rounded(tokens: int, width: int) -> Pair:
    x = torch.randn(tokens, width, dtype=torch.bfloat16)
    codes, scales = torch.empty(x.shape, dtype=torch.float8_e4m3fn), _columns(tokens, width // 128)

    def ours() -> tuple[torch.Tensor, torch.Tensor]:
        return quantise_rows(x)

    def vendor() -> tuple[torch.Tensor, torch.Tensor]:
        limits = (LEAST_AMAX, -LARGEST_CODE, LARGEST_CODE)
        _vendor().sgl_per_token_group_quant_8bit(x, codes, scales, 128, *limits)
        return codes, scales

    def numbers(made: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return made[0].float().unflatten(1, (-1, 128)) * made[1].unsqueeze(2)

    return Pair(ours, vendor, lambda: _rounding(numbers(ours()), numbers(vendor())))


def _sorted(tokens: int) -> Pair:
    size = 16 if tokens <= FEW else 128
    experts = torch.rand(tokens, EXPERTS).argsort(1)[:, :CHOSEN].contiguous()
    narrow = experts.to(torch.int32)
    blocks = block_limit(experts.numel(), EXPERTS, size)
    places = torch.empty(blocks * size, dtype=torch.int32)
    owners, sums = (torch.empty(n, dtype=torch.int32) for n in (blocks, EXPERTS + 2))
    used = torch.empty(1, dtype=torch.int32)

    def ours() -> Any:
        return expert_blocks(experts, num_experts=EXPERTS, size=size)

    def vendor() -> torch.Tensor:
        align = _vendor().moe_align_block_size
        # Experts are counted from one: id 0 is for those of other ranks.
        align(narrow, EXPERTS + 1, size, places, owners, used, sums, True)
        return owners

    def differ() -> float:
        mine = ours().expert
        found, live = vendor(), int(used) // size
        return _share(mine[:live] != found[:live]) + float((mine >= 0).sum() != live)

    return Pair(ours, vendor, differ)


def _chosen(rows: int, blocks: int) -> Pair:
    scores = torch.randn(rows, blocks)
    visible = torch.full((rows,), blocks, dtype=torch.int64)
    narrow = visible.to(torch.int32)

    def ours() -> torch.Tensor:
        return select_topk(scores, visible, top_k=2048)

    def vendor() -> torch.Tensor:
        return _vendor().fast_topk_v2(scores, narrow, 2048)

    # The vendor's come in any order.
    return Pair(ours, vendor, lambda: _share(ours() != vendor().long().sort(1).values))


def main() -> int:
    """Time what is asked for; 1 if results are not alike."""
    parser = argparse.ArgumentParser("python -m tests.bench.kernels.vendor_cases")
    parser.add_argument("op", nargs="*", help="ops to measure; all by default")
    parser.add_argument("--csv", type=Path, help="file that rows are added to")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: there is nothing to measure")
    if importlib.util.find_spec("sgl_kernel") is None:
        sys.exit("sgl_kernel is not installed: pip install sglang-kernel")
    with torch.device("cuda"):
        wanted = [case for case in vendor_cases() if case.op in options.op or not options.op]
        return _measure(wanted, options.csv)


def _measure(wanted: list[VendorCase], target: Path | None) -> int:
    bandwidth, unlike = copy_bandwidth(), 0
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e12:.2f} TB/s, read and written")
    print(
        f"{'op':<17}{'shape':<26}{'floor us':>9}{'ours':>9}{'vendor':>9}{'ratio':>7}{'unlike':>9}"
    )
    rows: list[tuple[object, ...]] = []
    for case in wanted:
        pairs = [case.prepare() for _ in range(input_sets(case.moved_bytes))]
        share = pairs[0].differ()
        mine, theirs = graph_us([p.ours for p in pairs]), graph_us([p.vendor for p in pairs])
        floor, copied = case.moved_bytes / bandwidth * 1e6, copy_us(case.moved_bytes)
        line = f"{case.op:<17}{case.shape:<26}{floor:>9.2f}{mine:>9.2f}{theirs:>9.2f}"
        print(f"{line}{mine / theirs:>7.2f}{share:>9.2%}", flush=True)
        unlike += share > ALIKE
        for backend, us in ((chosen("cuda")[case.op], mine), ("sgl_kernel", theirs)):
            figures = (round(figure, 2) for figure in (us, floor, copied, us / floor))
            rows.append((case.op, backend, case.shape, *figures))
        torch.cuda.empty_cache()
    if target is not None:
        add_rows(target, MOVED, rows)
    print(f"{len(wanted)} measured, {unlike} not alike")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
