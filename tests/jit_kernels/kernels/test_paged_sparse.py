"""Attention over packed records by the vendor, against the reference."""

import pytest
import torch
from torch import Tensor

from jit_kernels.latent_records.reference import encode_latents
from jit_kernels.paged_sparse import SparsePlan, reference
from jit_kernels.vendor_library import why_no_flash_mla
from tests.testing.compare import Bounds, assert_close, assert_same_bits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(why_no_flash_mla()), reason=str(why_no_flash_mla())),
]
PAGE, PAGES, SCALE = 256, 9, 0.06
# Tokens, heads, columns.
CASES = [(1, 128, 2048), (3, 5, 64), (65, 64, 2048), (1100, 66, 128)]


def some_records() -> Tensor:
    """Return pages of random records; page 0, the dummy, holds no number."""
    size = torch.logspace(-2, 1, 4, base=2.0).repeat_interleave(128)
    numbers = torch.randn(PAGES * PAGE, 576)
    numbers[:, :512] *= size
    pages = encode_latents(numbers, "fp8", 64).view(PAGES, PAGE, 656)
    pages[0] = 255
    return pages


def some_slots(tokens: int, columns: int) -> Tensor:
    """Return slots as choices make them: ascending, -1 behind them; every fifth token has none."""
    slots = torch.randint(PAGE, PAGES * PAGE, (tokens, columns), dtype=torch.int32)
    count = torch.randint(1, columns + 1, (tokens, 1))
    count[0], count[4::5] = columns, 0
    return slots.masked_fill(torch.arange(columns) >= count, -1)


def attend(q: Tensor, pages: Tensor, slots: Tensor, *, invariant: bool) -> Tensor:
    """Attend by the vendor, as two layers of a step do."""
    from jit_kernels.paged_sparse import flash_mla_backend

    plan = SparsePlan()
    first, second = (
        flash_mla_backend.paged_sparse(q, pages, slots, SCALE, plan, invariant) for _ in range(2)
    )
    assert_same_bits(first, second)
    return first


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "columns"), CASES)
def test_attention_equals_the_reference(
    tokens: int, heads: int, columns: int, invariant: bool
) -> None:
    q, pages = torch.randn(tokens, heads, 576).bfloat16(), some_records()
    slots = some_slots(tokens, columns)

    got = attend(q, pages, slots, invariant=invariant)

    want = reference.paged_sparse(q, pages, slots, SCALE, SparsePlan(), True)
    assert_close(got, want, Bounds(atol=2e-2, rtol=2e-2, cosine=0.9999, rms=1e-2))


def test_an_invariant_token_has_the_same_bits_in_any_company_and_width() -> None:
    q, pages = torch.randn(1500, 64, 576).bfloat16(), some_records()
    slots = some_slots(1500, 512)
    whole = attend(q, pages, slots, invariant=True)

    for pick in (slice(0, 1), slice(2, 40), slice(1000, 1400)):
        wide = torch.full((pick.stop - pick.start, 2048), -1, dtype=torch.int32)
        wide[:, :512] = slots[pick]
        part = attend(q[pick], pages, wide, invariant=True)
        assert_same_bits(part, whole[pick])
