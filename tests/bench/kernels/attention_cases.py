"""Attention at the shapes of V4-Flash and V4-Pro, backend by backend.

`python -m tests.bench.kernels.attention_cases [op ...]` measures all backends that run here and
prints a table. Attention of many queries is bound by arithmetic: hence the operations, and why
`python -m tests.bench.kernels`, whose floors are bytes, leaves it to this.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from jit_kernels.copy_records import copy_records
from jit_kernels.decode_indices import PageSizes, decode_indices
from jit_kernels.kv_records.reference import encode_records
from jit_kernels.kv_workspace import RecordSet, fill_workspace
from jit_kernels.paged_attention import PagedKeys, SplitPlan
from jit_kernels.paged_rows import PageLayout
from jit_kernels.paged_rows.reference import store_rows
from jit_kernels.prefill_indices import BlockList, prefill_index
from jit_kernels.translate_blocks import translate_blocks
from jit_kernels.vendor_library import why_no_flash_mla
from tests.bench.kernels.timing import copy_bandwidth, graph_us, input_sets

__all__ = ["AttentionCase", "attention_cases"]

RECORDS = PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37440)
V4 = PageSizes(page=256, swa_page=64, window=128)
SCALE = 512**-0.5
ANY = "chosen"
VENDOR = "flash_mla"
PROCESSORS = 132
# Rows, heads, keys besides the window's 128, whether they come with lengths.
DECODES = [
    (1, 64, 512, False),
    (16, 64, 512, False),
    (64, 64, 512, False),
    (256, 64, 512, False),
    (1, 64, 0, False),
    (64, 64, 0, False),
    (1, 64, 7040, True),
    (1, 64, 8192, True),
    (64, 64, 8192, True),
    (64, 128, 1024, False),
]
# Tokens, heads, keys.
PREFILLS = [(4096, 64, 640), (4096, 128, 1152), (1024, 64, 8320)]


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """An op at one shape on one backend.

    backend      its name; "chosen": the registry's
    moved_bytes  every input read once and every output written once
    operations   of the products
    prepare      makes fresh inputs on the default device and returns the call that uses them
    """

    op: str
    backend: str
    shape: str
    moved_bytes: int
    operations: int
    prepare: Callable[[], Callable[[], Any]]


def attention_cases(backends: list[str], *, shrink: int = 1) -> Iterator[AttentionCase]:
    """Yield every case; `shrink` divides numbers of rows and tokens, for a quick try."""
    for rows, heads, keys, lengths in DECODES:
        rows = -(-rows // shrink)
        shape = f"B={rows} H={heads} K=128+{keys}"
        moved = rows * ((128 + keys) * 588 + heads * 2048)
        operations = 4 * 512 * rows * heads * (128 + keys)
        for backend in backends:
            # Tiles divided evenly where the backend does so, and by row.
            for splits in ("even", "fixed"):
                prepare = _decode(backend, (rows, heads, keys), lengths=lengths, splits=splits)
                name = backend if splits == "even" else f"{backend} {splits}"
                yield AttentionCase("paged_attention", name, shape, moved, operations, prepare)
    for tokens, heads, keys in PREFILLS:
        tokens = -(-tokens // shrink)
        shape = f"T={tokens} H={heads} K={keys}"
        moved = tokens * (4 * keys + heads * 2048) + 1024 * min(2 * tokens, tokens * keys)
        operations = 4 * 512 * tokens * heads * keys
        for backend in backends:
            prepare = _prefill(backend, (tokens, heads, keys))
            yield AttentionCase("sparse_prefill", backend, shape, moved, operations, prepare)
    for op, shape, moved, prepare in _helpers(shrink):
        yield AttentionCase(op, ANY, shape, moved, 0, prepare)


def _backend_of(op: str, backend: str) -> Callable[..., Any]:
    """Return a backend's function with the arguments that backends take."""
    if backend == ANY:
        return getattr(importlib.import_module(f"jit_kernels.{op}"), f"_{op}")
    return getattr(importlib.import_module(f"jit_kernels.{op}.{backend}_backend"), op)


def _pages(records: int) -> tuple[torch.Tensor, int]:
    """Return pages that hold this many records or a few more, and their number."""
    units = -(-records // RECORDS.page_rows)
    pages = torch.zeros((units, RECORDS.page_bytes), dtype=torch.uint8)
    rows = encode_records(torch.randn(RECORDS.page_rows, 512), "fp8", 64)
    for first in range(0, units, 1024):
        some = pages[first : first + 1024]
        slots = torch.arange(some.shape[0] * RECORDS.page_rows)
        store_rows(some, slots, rows.repeat(some.shape[0], 1), RECORDS)
    return pages, units * RECORDS.page_rows


def _keys(rows: int, columns: int, *, lengths: bool) -> PagedKeys:
    """Return keys of rows that share none."""
    pages, count = _pages(rows * columns)
    slots = torch.randperm(count, dtype=torch.int32)[: rows * columns].view(rows, columns)
    counts = torch.full((rows,), columns, dtype=torch.int32) if lengths else None
    return PagedKeys(pages, RECORDS, slots, counts)


def _decode(
    backend: str, sizes: tuple[int, int, int], *, lengths: bool, splits: str
) -> Callable[[], Callable[[], Any]]:
    rows, heads, keys = sizes

    def prepare() -> Callable[[], Any]:
        q, sink = torch.randn(rows, heads, 512).bfloat16(), torch.randn(heads)
        window = _keys(rows, 128, lengths=False)
        extra = _keys(rows, keys, lengths=lengths) if keys else None
        run, plan = _backend_of("paged_attention", backend), SplitPlan()
        return lambda: run(q, window, extra, sink, SCALE, plan, splits == "fixed")

    return prepare


def _prefill(backend: str, sizes: tuple[int, int, int]) -> Callable[[], Callable[[], Any]]:
    tokens, heads, columns = sizes

    def prepare() -> Callable[[], Any]:
        q, sink = torch.randn(tokens, heads, 512).bfloat16(), torch.randn(heads)
        rows = 2 * tokens + columns
        keys = torch.randn(rows, 512).bfloat16()
        # A window that slides, and blocks of all the past.
        window = torch.arange(tokens).unsqueeze(1) + torch.arange(128)
        chosen = torch.randint(rows, (tokens, columns - 128)).sort(1)[0]
        index = torch.cat((window % rows, chosen), 1).to(torch.int32)
        run = _backend_of("sparse_prefill", backend)
        return lambda: run(q, keys, index, sink, SCALE, None)

    return prepare


def _helpers(shrink: int) -> Iterator[tuple[str, str, int, Callable[[], Callable[[], Any]]]]:
    for records in (-(-8192 // shrink), -(-65536 // shrink)):

        def fill(records: int = records) -> Callable[[], Any]:
            pages, count = _pages(records)
            slots = torch.randperm(count, dtype=torch.int32)[:records]
            out = torch.empty((records, 512), dtype=torch.bfloat16)
            return lambda: fill_workspace(out, [RecordSet(pages, RECORDS, slots)])

        def copy(records: int = records) -> Callable[[], Any]:
            (pages, count), (target, _) = _pages(records), _pages(records)
            slots = torch.randperm(count, dtype=torch.int32)[:records]
            aim = RecordSet(target, RECORDS, torch.arange(records, dtype=torch.int32))
            return lambda: copy_records(RecordSet(pages, RECORDS, slots), aim)

        yield "fill_workspace", f"M={records}", records * (588 + 1024), fill
        yield "copy_records", f"M={records}", records * 2 * 588, copy
    for columns in (512, 8192):
        rows = -(-64 // shrink)

        def decode(rows: int = rows, columns: int = columns) -> Callable[[], Any]:
            position = torch.randint(columns * 128, (rows,))
            table = torch.randint(1, 9999, (rows, columns // 2), dtype=torch.int32)
            window = torch.randint(1, 9999, (rows, 2), dtype=torch.int32)
            angles = torch.rand(2, 64)
            return lambda: decode_indices(
                *(position, table, window),
                window_from=None,
                sizes=V4,
                c128_columns=columns,
                top_k=512,
                angles=angles,
            )

        yield "decode_indices", f"B={rows} C={columns}", rows * columns * 6, decode
    for tokens in (-(-64 // shrink), -(-8192 // shrink)):

        def translate(tokens: int = tokens) -> Callable[[], Any]:
            blocks = torch.randint(16384, (tokens, 512))
            table = torch.randint(1, 9999, (64, 256), dtype=torch.int32)
            row, out = torch.randint(64, (tokens,)), torch.empty((tokens, 512), dtype=torch.int32)
            return lambda: translate_blocks(blocks, table, out, page_blocks=64, row=row)

        yield "translate_blocks", f"T={tokens} k=512", tokens * 512 * 12, translate

        def index(tokens: int = tokens) -> Callable[[], Any]:
            start, row = torch.tensor([65536]), torch.zeros(tokens, dtype=torch.int64)
            blocks = BlockList(128, torch.zeros(1, dtype=torch.int64), 576)
            position = torch.arange(tokens) + 65536
            return lambda: prefill_index(
                *(position, row, start),
                window_from=start - 9999,
                window=128,
                columns=512,
                blocks=blocks,
            )

        yield "prefill_index", f"T={tokens} K=640", tokens * (640 * 4 + 20), index


def main(ops: list[str]) -> None:
    """Measure and print the cases of the ops that are named, of all if there are none."""
    if not torch.cuda.is_available():
        sys.exit("no CUDA device: there is nothing to measure")
    reason = why_no_flash_mla()
    if reason:
        print(f"without {VENDOR}: {reason}")
    with torch.device("cuda"):
        bandwidth = copy_bandwidth()
        print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e12:.2f} TB/s")
        print(
            f"{'op':<17}{'backend':<17}{'shape':<26}{'us':>10}{'floor':>9}{'GB/s':>7}{'TFLOP/s':>9}"
        )
        for case in attention_cases([] if reason else [VENDOR]):
            if ops and case.op not in ops:
                continue
            time_us = graph_us(
                [case.prepare() for _ in range(min(8, input_sets(case.moved_bytes)))]
            )
            floor, rate = case.moved_bytes / bandwidth * 1e6, case.operations / time_us / 1e6
            line = f"{case.op:<17}{case.backend:<17}{case.shape:<26}{time_us:>10.2f}{floor:>9.2f}"
            print(f"{line}{case.moved_bytes / time_us / 1e3:>7.0f}{rate:>9.1f}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1:])
