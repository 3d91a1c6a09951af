"""Matrix ops in the sizes of V4-Flash: what to time, and the bytes and operations it cannot avoid.

A case's `make` draws random operands on the first CUDA device and returns a call without arguments
that may be captured into a graph; called again it draws others, to rotate through. Weights of
experts are many times the L2 cache and are drawn once.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from jit_kernels.expert_weights import Fp4Experts, Fp8Experts

WIDTH, INNER, EXPERTS, TOP_K = 4096, 2048, 256, 6
LIMIT = 10.0
DEVICE = "cuda"

# Name, rows of the weight, channels: the fp8 linears of a layer.
FP8_SHAPES = (
    ("wqkv_a", 1536, 4096),
    ("wq_b", 32768, 1024),
    ("indexer_wq_b", 8192, 1024),
    ("wo_b", 4096, 8192),
    ("shared_in", 4096, 4096),
    ("shared_out", 4096, 2048),
)
BF16_SHAPES = (
    ("c4_kv_gate", 2048, 4096),
    ("c4_all", 2624, 4096),
    ("c128_all", 1024, 4096),
    ("indexer_kv_gate", 512, 4096),
    ("router", 256, 4096),
    ("weights_proj", 64, 4096),
)
GROUPS, GROUP_ROWS, GROUP_DEPTH = 8, 1024, 4096
LINEAR_ROWS = (1, 8, 16, 64, 256, 8192)
STREAMED_ROWS = (1, 4, 16, 64, 128, 256, 512, 1024)
GROUPED_ROWS = (512, 1024, 2048, 4096, 8192, 16384)


@dataclass(frozen=True, slots=True)
class MatrixCase:
    """One op, backend and size.

    rows   of activations, 0 for an op on weights
    bytes  least traffic with device memory: each operand read once, the result written once
    flops  multiplications and additions
    """

    op: str
    backend: str
    rows: int
    shape: str
    make: Callable[[], Callable[[], object]]
    bytes: int
    flops: int


def matrix_cases() -> Iterator[MatrixCase]:
    """Yield every case; nothing is drawn before `make` is called."""
    for name, columns, depth in FP8_SHAPES:
        for rows in LINEAR_ROWS:
            for backend in (*_streams(rows), "deep_gemm"):
                yield _fp8_case(backend, f"{name} ", rows, columns, depth)
        for backend in ("one_row", "separate"):
            yield _fp8_row_case(backend, name, columns, depth)
    for name, columns, depth in BF16_SHAPES:
        for rows in LINEAR_ROWS:
            for backend in (*_streams(rows), "deep_gemm"):
                yield _bf16_case(backend, f"{name} ", rows, columns, depth)
    for rows in LINEAR_ROWS:
        for backend in (*_streams(rows), "deep_gemm"):
            yield _grouped_case(backend, rows)
    for rows in (1, 64, 256, 8192):
        yield _blocks_case(rows, 128 if rows > 1024 else 8)
    yield _expand_case()
    for backend, form in (("triton", "fp4"), ("cuda", "fp4"), ("triton", "fp8")):
        for rows in STREAMED_ROWS:
            yield _streamed_case(backend, form, rows)
    for rows in GROUPED_ROWS:
        yield _moe_case("deep_gemm", rows)


def _streams(rows: int) -> tuple[str, ...]:
    """Return the backend of products of few rows, if so many are few."""
    return ("cuda",) if rows <= 8 else ()


def fp8_operands(rows: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return quantised normal rows."""
    from jit_kernels.quant_fp8 import quantise_rows

    return quantise_rows(torch.randn(rows, depth, device=DEVICE))


def fp8_weight(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random e4m3 numbers, none of them NaN, and scales of block products of order one."""
    *outer, rows, depth = shape
    codes = torch.randint(0, 0x7F, shape, dtype=torch.uint8, device=DEVICE)
    codes |= torch.randint(0, 2, shape, dtype=torch.uint8, device=DEVICE) << 7
    blocks = (*outer, -(-rows // 128), depth // 128)
    scales = torch.exp2(torch.randint(-14, -11, blocks, device=DEVICE).float())
    return codes.view(torch.float8_e4m3fn), scales


def routing(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return experts and weights of evenly routed rows on the CPU; the same for the same `rows`."""
    seeded = torch.Generator().manual_seed(rows)
    chosen = torch.rand(rows, EXPERTS, generator=seeded, device="cpu").argsort(1)[:, :TOP_K]
    return chosen, torch.rand(rows, TOP_K, generator=seeded, device="cpu")


@functools.cache
def experts(form: str) -> Fp4Experts | Fp8Experts:
    """Return all experts of one layer, 3.4 GB in fp4, 6.4 GB in fp8."""
    if form == "fp8":
        gate_up = fp8_weight(EXPERTS, 2 * INNER, WIDTH)
        return Fp8Experts(*gate_up, *fp8_weight(EXPERTS, WIDTH, INNER))

    def weight(rows: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = (EXPERTS, rows, depth // 4)
        groups = (EXPERTS, rows, depth // 32)
        return (
            torch.randint(-(2**15), 2**15, words, dtype=torch.int16, device=DEVICE),
            torch.randint(117, 121, groups, dtype=torch.uint8, device=DEVICE),
        )

    return Fp4Experts(*weight(2 * INNER, WIDTH), *weight(WIDTH, INNER))


def _function(module: str, backend: str, name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(f"jit_kernels.{module}.{backend}_backend"), name)


def _fp8_case(backend: str, name: str, rows: int, columns: int, depth: int) -> MatrixCase:
    def make() -> Callable[[], object]:
        run = _function("fp8_linear", backend, "fp8_linear")
        arguments = (*fp8_operands(rows, depth), *fp8_weight(columns, depth))
        return lambda: run(*arguments)

    moved = columns * depth + rows * depth + 2 * rows * columns
    shape = f"{name}{rows}x{columns}x{depth}"
    return MatrixCase("fp8_linear", backend, rows, shape, make, moved, 2 * rows * columns * depth)


def _fp8_row_case(backend: str, name: str, columns: int, depth: int) -> MatrixCase:
    """Return the product of a row that is not rounded yet, and normed first as queries are."""

    def make() -> Callable[[], object]:
        run = _function("fp8_linear", backend, "fp8_linear_of")
        x, norm = torch.randn(1, depth, device=DEVICE).bfloat16(), torch.randn(depth, device=DEVICE)
        gain = norm if name.endswith("wq_b") else None
        arguments = (x, *fp8_weight(columns, depth), gain, 1e-6, False)
        return lambda: run(*arguments)

    moved = columns * depth + 2 * depth + 2 * columns
    shape = f"{name} 1x{columns}x{depth}"
    return MatrixCase("fp8_linear_of", backend, 1, shape, make, moved, 2 * columns * depth)


def _bf16_case(backend: str, name: str, rows: int, columns: int, depth: int) -> MatrixCase:
    def make() -> Callable[[], object]:
        run = _function("bf16_linear", backend, "bf16_linear")
        x, weight = (torch.randn(n, depth, device=DEVICE).bfloat16() for n in (rows, columns))
        return lambda: run(x, weight)

    moved = 2 * columns * depth + 2 * rows * depth + 4 * rows * columns
    shape = f"{name}{rows}x{columns}x{depth}"
    return MatrixCase("bf16_linear", backend, rows, shape, make, moved, 2 * rows * columns * depth)


def _grouped_case(backend: str, rows: int) -> MatrixCase:
    def make() -> Callable[[], object]:
        run = _function("fp8_linear", backend, "fp8_linear_grouped")
        codes, scales = fp8_operands(rows, GROUPS * GROUP_DEPTH)
        rows_in = (codes.view(rows, GROUPS, GROUP_DEPTH), scales.unflatten(1, (GROUPS, -1)))
        arguments = (*rows_in, *fp8_weight(GROUPS, GROUP_ROWS, GROUP_DEPTH))
        return lambda: run(*arguments)

    moved = GROUPS * ((GROUP_ROWS + rows) * GROUP_DEPTH + 2 * rows * GROUP_ROWS)
    shape = f"wo_a {rows}x{GROUPS}x{GROUP_ROWS}x{GROUP_DEPTH}"
    flops = 2 * rows * GROUPS * GROUP_ROWS * GROUP_DEPTH
    return MatrixCase("fp8_linear_grouped", backend, rows, shape, make, moved, flops)


def _blocks_case(rows: int, size: int) -> MatrixCase:
    def make() -> Callable[[], object]:
        run = _function("expert_blocks", "triton", "expert_blocks")
        chosen = routing(rows)[0].to(DEVICE)
        return lambda: run(chosen, EXPERTS, size)

    shape = f"{rows}x{TOP_K} by {size}"
    return MatrixCase("expert_blocks", "triton", rows, shape, make, 20 * rows * TOP_K, 0)


def _expand_case() -> MatrixCase:
    count, columns = EXPERTS, WIDTH

    def make() -> Callable[[], object]:
        run = _function("expert_weights", "cuda", "expand_fp4")
        parts, fp8 = experts("fp4"), experts("fp8")
        arguments = (parts.gate_up, parts.gate_up_scales, fp8.gate_up, fp8.gate_up_scales)
        return lambda: run(*arguments)

    numbers = count * 2 * INNER * columns
    return MatrixCase("expand_fp4", "cuda", 0, "gate_up", make, numbers * 3 // 2 + numbers // 32, 0)


def _expert_bytes(form: str, rows: int) -> int:
    """Return the bytes of the experts that `rows` are routed to."""
    touched = len(routing(rows)[0].unique())
    numbers = 3 * INNER * WIDTH
    return touched * (numbers // 2 + numbers // 32 if form == "fp4" else numbers)


def _streamed_case(backend: str, form: str, rows: int) -> MatrixCase:
    # Rows to a block, as the op chooses them.
    mean = rows * TOP_K / EXPERTS
    size = next((size for most, size in ((4, 8), (10, 16), (22, 32)) if mean <= most), 64)

    def make() -> Callable[[], object]:
        run = _function("streamed_moe", backend, "streamed_moe")
        x = torch.randn(rows, WIDTH, device=DEVICE).bfloat16()
        chosen, weights = (tensor.to(DEVICE) for tensor in routing(rows))
        parts = experts(form)
        return lambda: run(x, chosen, weights, parts, LIMIT, None, torch.bfloat16, size)

    moved = _expert_bytes(form, rows) + 4 * rows * WIDTH
    flops = 2 * rows * TOP_K * 3 * INNER * WIDTH
    shape = f"{rows} rows"
    return MatrixCase("streamed_moe", f"{backend} {form}", rows, shape, make, moved, flops)


def _moe_case(backend: str, rows: int) -> MatrixCase:
    def make() -> Callable[[], object]:
        run = _function("grouped_moe", backend, "grouped_moe")
        codes, scales = fp8_operands(rows, WIDTH)
        chosen, weights = (tensor.to(DEVICE) for tensor in routing(rows))
        arguments = (codes, scales, chosen, weights, experts("fp8"), LIMIT, None, torch.bfloat16)
        return lambda: run(*arguments)

    moved = _expert_bytes("fp8", rows) + 3 * rows * WIDTH
    flops = 2 * rows * TOP_K * 3 * INNER * WIDTH
    return MatrixCase("grouped_moe", backend, rows, f"{rows} rows", make, moved, flops)
