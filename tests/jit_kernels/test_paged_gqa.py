"""Attention over bfloat16 pages by its formula; heads in C as in torch."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.gqa_heads import HeadWeights, gqa_heads
from jit_kernels.gqa_heads import reference as heads_in_torch
from jit_kernels.paged_gqa import PagedRows, paged_gqa
from jit_kernels.paged_gqa.reference import paged_gqa as in_torch
from tests.testing.compare import Bounds, assert_close

HEADS, GROUPS, WIDTH, PAGE, SCALE = 4, 2, 8, 16, 0.3


def rows() -> PagedRows:
    """Return two rows, of which one begins in the middle of its second page."""
    table = torch.tensor([[2, 4, 1], [3, 0, 0]], dtype=torch.int32)
    first = torch.tensor([0, 5, 6], dtype=torch.int32)
    return PagedRows(table, torch.tensor([40, 9], dtype=torch.int32), first, 5)


@pytest.mark.parametrize(("window", "with_sink"), [(0, False), (7, False), (0, True), (20, True)])
def test_the_reference_is_the_formula(window: int, with_sink: bool) -> None:
    q, keys, values = (
        torch.randn(shape).bfloat16()
        for shape in ((6, HEADS, WIDTH), (5, PAGE, GROUPS, WIDTH), (5, PAGE, GROUPS, WIDTH))
    )
    sink = torch.randn(HEADS).bfloat16() if with_sink else None
    of = rows()

    got = in_torch(q, keys, values, of, SCALE, window, sink, invariant=False)

    for token, (row, position) in enumerate([*((0, p) for p in range(35, 40)), (1, 8)]):
        pages = of.page_table[row].long()
        begin = max(0, position + 1 - window) if window else 0
        k, v = (
            pool[pages].flatten(0, 1)[begin : position + 1].double().repeat_interleave(2, 1)
            for pool in (keys, values)
        )
        weights = (torch.einsum("hd,shd->hs", q[token].double(), k) * SCALE).exp()
        total = weights.sum(1, keepdim=True)
        total = total if sink is None else total + sink.double().exp().unsqueeze(1)
        want = torch.einsum("hs,shd->hd", weights / total, v)
        assert_close(got[token].double(), want, Bounds(atol=0.02))


def test_what_does_not_fit_is_refused() -> None:
    q, pages = torch.zeros(6, HEADS, WIDTH).bfloat16(), torch.zeros(5, PAGE, GROUPS, WIDTH)
    short = torch.zeros(5, 8, GROUPS, WIDTH).bfloat16()

    with pytest.raises(ShapeError, match=r"keys is torch\.float32"):
        paged_gqa(q, pages, pages, rows(), scale=SCALE)
    with pytest.raises(ShapeError, match="in pages of 8"):
        paged_gqa(q, short, short, rows(), scale=SCALE)
    whole = pages.bfloat16()
    with pytest.raises(ShapeError, match="sink has shape"):
        paged_gqa(q, whole, whole, rows(), scale=SCALE, sink=torch.zeros(3).bfloat16())


@pytest.mark.parametrize("normed", [True, False])
def test_heads_are_made_as_in_torch_and_what_is_not_finite_is_stored_as_0(normed: bool) -> None:
    columns, angle = (HEADS + 2 * GROUPS) * WIDTH, torch.randn(3, WIDTH // 2)
    rotation = torch.stack((angle.cos(), angle.sin()), 1)
    made, norms = torch.randn(3, columns), (torch.randn(WIDTH), torch.randn(WIDTH))
    made[1, -1] = torch.inf
    weights = HeadWeights(torch.randn(columns), norms if normed else None, 1e-6)
    slots, found = torch.tensor([17, 3, 30]), list[tuple[torch.Tensor, ...]]()
    for public in (True, False):
        keys, values = (torch.ones(2, PAGE, GROUPS, WIDTH).bfloat16() for _ in range(2))
        args = (made.clone(), rotation, keys, values, slots, weights)
        if public:
            q = gqa_heads(*args, out_dtype=torch.float32)
        else:
            q = heads_in_torch.gqa_heads(*args, torch.float32)
        found.append((q, keys, values))

    for got, want in zip(*found, strict=True):
        assert_close(got, want, Bounds(atol=1e-5, rtol=2.0**-7))
    values = found[0][2].flatten(0, 1)
    assert values[3, -1, -1] == 0
    assert bool(values[4].eq(1).all())
    with pytest.raises(ShapeError, match="no heads"):
        gqa_heads(made[:, 1:].contiguous(), *args[1:], out_dtype=torch.float32)
