"""Records stored by the device, byte by byte."""

import pytest
import torch

from jit_kernels.paged_rows import PageLayout
from jit_kernels.store_kv import cuda_backend, reference
from tests.jit_kernels.kernels.test_rope import rotations
from tests.testing.compare import assert_same_bits

SWA = PageLayout(page_rows=64, data_bytes=576, scale_bytes=8, page_bytes=37440)
C128 = PageLayout(page_rows=2, data_bytes=576, scale_bytes=8, page_bytes=1728)
COUNTS = [0, 1, 7, 3, 63, 64, 65, 255, 256, 257, 1000]
pytestmark = pytest.mark.gpu


def some_slots(count: int, layout: PageLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Return poisoned pages and slots in them; every fifth row is left out."""
    units = count // layout.page_rows + 2
    slots = torch.randperm(units * layout.page_rows)[:count]
    slots[2::5] = -1
    return torch.full((units, layout.page_bytes), 255, dtype=torch.uint8), slots


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("layout", [SWA, C128])
def test_normed_and_rotated_records_differ_from_the_reference_by_rounding(
    layout: PageLayout, count: int
) -> None:
    pages, slots = some_slots(count, layout)
    x, weight = torch.randn(count, 1024).bfloat16()[:, :512], torch.randn(512)
    more = weight, rotations(count, 64), 1e-6, "fp8"
    want, other = pages.clone(), torch.zeros_like(pages)
    for some in (want, other):
        reference.norm_rope_store(some, slots, x, layout, *more)

    cuda_backend.norm_rope_store(pages, slots, x, layout, *more)

    steps = (pages.int() - want.int()).abs()
    assert (steps[want != other] == 0).all(), "bytes of no row were written"
    assert float((steps > 0).float().mean()) < 2e-3


@pytest.mark.parametrize("count", [4225, 16384])
def test_rows_have_the_same_bits_in_any_company(count: int) -> None:
    pages, slots = some_slots(count, SWA)
    x, weight, turns = torch.randn(count, 512).bfloat16(), torch.randn(512), rotations(count, 64)
    whole, parts = pages.clone(), pages.clone()
    want = pages.clone()
    reference.norm_rope_store(want, slots, x, SWA, weight, turns, 1e-6, "fp8")

    cuda_backend.norm_rope_store(whole, slots, x, SWA, weight, turns, 1e-6, "fp8")
    for rows in (slice(0, 1), slice(1, 258), slice(258, count)):
        some = slots[rows], x[rows], SWA, weight, turns[rows], 1e-6, "fp8"
        cuda_backend.norm_rope_store(parts, *some)

    assert_same_bits(parts, whole)
    assert float((whole != want).float().mean()) < 2e-3


def test_a_graph_stores_other_rows_when_replayed() -> None:
    pages, slots = some_slots(300, SWA)
    x = torch.randn(300, 512).bfloat16()
    out = torch.zeros_like(x)
    more = torch.randn(512), rotations(300, 64), 1e-6, "fp8"

    def run() -> None:
        # One right after the other: the stores read what was just written.
        torch.neg(x, out=out)
        cuda_backend.norm_rope_store(pages, slots, out, SWA, *more)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    for _ in range(3):
        x.copy_(torch.randn(300, 512))
        graph.replay()
        want = torch.full_like(pages, 255)
        cuda_backend.norm_rope_store(want, slots, -x, SWA, *more)
        assert_same_bits(pages, want)
