"""Records stored by the device, byte by byte."""

from types import ModuleType

import pytest
import torch

from jit_kernels.paged_rows import PageLayout
from jit_kernels.store_kv import cuda_backend, reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.jit_kernels.kernels.test_rope import rotations
from tests.testing.compare import assert_same_bits

SWA = PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37440)
C128 = PageLayout(page_rows=2, data_bytes=576, scale_bytes=8, page_bytes=1728)
SMALL = PageLayout(page_rows=3, data_bytes=96, scale_bytes=8, page_bytes=384)
NUMBERS = PageLayout(page_rows=5, data_bytes=38 * 2, scale_bytes=0, page_bytes=38 * 12)
RECORDS = [
    (SWA, "fp8", 512, 64),
    (C128, "fp8", 512, 64),
    (SMALL, "fp8", 80, 16),
    (NUMBERS, "bf16", 38, 8),
    (PageLayout(3, 512 * 4, 0, 512 * 4 * 3), "fp32", 512, 64),
]
COUNTS = with_large([0, 1, 7], [3, 63, 64, 65, 255, 256, 257, 1000])
DTYPES = [torch.float32, torch.bfloat16]
pytestmark = pytest.mark.parametrize("backend", with_large([triton_backend], [cuda_backend]))


def some_slots(count: int, layout: PageLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Return poisoned pages and slots in them; every fifth row is left out."""
    units = count // layout.page_rows + 2
    slots = torch.randperm(units * layout.page_rows)[:count]
    slots[2::5] = -1
    return torch.full((units, layout.page_bytes), 255, dtype=torch.uint8), slots


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(("layout", "record_format", "width", "turned"), RECORDS)
def test_normed_and_rotated_records_differ_from_the_reference_by_rounding(
    backend: ModuleType,
    layout: PageLayout,
    record_format: str,
    width: int,
    turned: int,
    count: int,
    dtype: torch.dtype,
) -> None:
    pages, slots = some_slots(count, layout)
    x, weight = torch.randn(count, 2 * width).to(dtype)[:, :width], torch.randn(width)
    more = weight, rotations(count, turned), 1e-6, record_format
    want, other = pages.clone(), torch.zeros_like(pages)
    for some in (want, other):
        reference.norm_rope_store(some, slots, x, layout, *more)

    backend.norm_rope_store(pages, slots, x, layout, *more)

    if record_format == "fp8":
        steps = (pages.int() - want.int()).abs()
        assert (steps[want != other] == 0).all(), "bytes of no row were written"
        assert float((steps > 0).float().mean()) < 2e-3
    else:
        number, step = {"fp32": (torch.float32, 1e-5), "bf16": (torch.bfloat16, 2.0**-7)}[
            record_format
        ]
        numbers = [each.view(number) for each in (pages, want)]
        assert torch.equal(numbers[0].isnan(), numbers[1].isnan())
        assert torch.allclose(*numbers, rtol=step, atol=1e-5, equal_nan=True)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [4225, 16384])
def test_rows_have_the_same_bits_in_any_company(
    backend: ModuleType, count: int, dtype: torch.dtype
) -> None:
    if backend is not cuda_backend:
        pytest.skip("only the CUDA backend lets a warp take several rows")
    pages, slots = some_slots(count, SWA)
    x, weight, turns = torch.randn(count, 512).to(dtype), torch.randn(512), rotations(count, 64)
    whole, parts = pages.clone(), pages.clone()
    want = pages.clone()
    reference.norm_rope_store(want, slots, x, SWA, weight, turns, 1e-6, "fp8")

    backend.norm_rope_store(whole, slots, x, SWA, weight, turns, 1e-6, "fp8")
    for rows in (slice(0, 1), slice(1, 258), slice(258, count)):
        some = slots[rows], x[rows], SWA, weight, turns[rows], 1e-6, "fp8"
        backend.norm_rope_store(parts, *some)

    assert_same_bits(parts, whole)
    assert float((whole != want).float().mean()) < 2e-3


@pytest.mark.gpu
def test_a_graph_stores_other_rows_when_replayed(backend: ModuleType) -> None:
    pages, slots = some_slots(300, SWA)
    x = torch.randn(300, 512).bfloat16()
    out = torch.zeros_like(x)
    more = torch.randn(512), rotations(300, 64), 1e-6, "fp8"

    def run() -> None:
        # One right after the other: the stores read what was just written.
        torch.neg(x, out=out)
        backend.norm_rope_store(pages, slots, out, SWA, *more)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    for _ in range(3):
        x.copy_(torch.randn(300, 512))
        graph.replay()
        want = torch.full_like(pages, 255)
        backend.norm_rope_store(want, slots, -x, SWA, *more)
        assert_same_bits(pages, want)
