"""Attention over latent records on the device: Triton's, and FlashMLA's where it is there."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from jit_kernels.paged_gqa import PagedRows
from jit_kernels.paged_gqa.triton_parts import parts_of
from jit_kernels.paged_latent import LatentPlan, reference, triton_backend
from jit_kernels.vendor_library import why_no_flash_mla
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close, assert_same_bits

Attend = Callable[..., Tensor]
# heads, channels of latents and turned ones
GEOMETRIES = with_large([(3, 40, 16)], [(16, 512, 64), (128, 512, 64), (5, 512, 64)])
# (length, tokens) of each row
STEPS = with_large(
    [[(70, 1), (0, 1), (1, 1)], [(70, 3), (33, 33), (9, 1), (30, 1)]],
    [[(4000, 1), (1, 1), (300, 1)] * 5, [(900, 700), (513, 1), (2000, 129)], [(5000, 16)] * 20],
)
PAGE, GARBAGE, SCALE = 64, 300.0, 0.1
BOUNDS = Bounds(atol=0.03, rms=0.01)


@pytest.fixture(params=["triton", "flash_mla"])
def attend(request: pytest.FixtureRequest) -> Attend:
    """Return a backend."""
    if request.param == "triton":
        return triton_backend.paged_latent
    if (reason := why_no_flash_mla()) is not None:
        pytest.skip(reason)
    from jit_kernels.paged_latent import flash_mla_backend

    return flash_mla_backend.paged_latent


class Case:
    """Random rows over scattered pages in which all that nobody reads is `GARBAGE`."""

    def __init__(
        self, geometry: tuple[int, int, int], step: Sequence[tuple[int, int]], page: int = PAGE
    ) -> None:
        heads, self.values, turned = geometry
        length, count = zip(*step, strict=True)
        columns = max(1, -(-max(length) // page))
        table = torch.randperm(len(step) * columns).view(len(step), columns) + 1
        shape = (len(step) * columns + 1, page, self.values + turned)
        self.records = torch.full(shape, GARBAGE, dtype=torch.bfloat16)
        for pages, end in zip(table, length, strict=True):
            place, noise = torch.arange(end), torch.randn(end, shape[2])
            self.records[pages[place // page], place % page] = noise.to(torch.bfloat16)
        first = torch.tensor([0, *count]).cumsum(0).int()
        self.rows = PagedRows(
            table.int(),
            torch.tensor(length, dtype=torch.int32),
            None if max(count) == 1 else first,
            max(count),
            None if max(count) == 1 else count,
        )
        self.q = torch.randn(int(first[-1]), heads, shape[2]).to(torch.bfloat16)

    def by(self, attend: Attend, plan: LatentPlan | None) -> Tensor:
        """Return what a backend makes of it."""
        return attend(self.q, self.records, self.rows, self.values, SCALE, plan)


@pytest.mark.parametrize("step", STEPS, ids=len)
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_it_is_the_reference(
    geometry: tuple[int, int, int], step: list[tuple[int, int]], attend: Attend
) -> None:
    made, plan = Case(geometry, step), LatentPlan()
    want = made.by(reference.paged_latent, None)

    assert_close(made.by(attend, plan), want, BOUNDS)
    assert_close(made.by(attend, plan), want, BOUNDS, what="with the plan of the first")


def test_few_rows_share_their_keys_among_programs(attend: Attend) -> None:
    made = Case((4, 32, 16), [(600, 1), (30, 1)], page=256)
    assert parts_of(2, 3 * 256) > 1

    got = made.by(attend, LatentPlan())

    assert_close(got, made.by(reference.paged_latent, None), BOUNDS)


def test_an_invariant_token_has_the_same_bits_alone_decoded_and_in_chunks() -> None:
    made = Case((2, 32, 16), [(100, 100), (40, 5)])
    whole = made.by(triton_backend.paged_latent, None)
    table, every = made.rows.page_table, made.q

    for stop, count in ((100, 1), (64, 64), (90, 33)):
        made.rows = PagedRows(
            table[:1].contiguous(),
            torch.tensor([stop], dtype=torch.int32),
            None if count == 1 else torch.tensor([0, count], dtype=torch.int32),
            count,
        )
        made.q = every[stop - count : stop].contiguous()
        got = made.by(triton_backend.paged_latent, None)
        assert_same_bits(got, whole[stop - count : stop], what=f"{count} tokens up to {stop}")
