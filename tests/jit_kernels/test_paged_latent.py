"""Attention over latent records: the steps around it give what expanded keys and values give."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.latent_heads import LatentWeights, absorbed_heads, latent_values
from jit_kernels.paged_gqa import PagedRows
from jit_kernels.paged_latent import paged_latent
from jit_kernels.paged_latent.spans import spans
from tests.testing.compare import Bounds, assert_close

HEADS, PLAIN, TURNED, LATENT, VALUE, PAGE, SCALE, TOKENS = 3, 16, 8, 32, 8, 64, 0.2, 70


def test_absorbed_heads_read_what_expanded_keys_and_values_give() -> None:
    made, norm = torch.randn(TOKENS, LATENT + TURNED), torch.rand(LATENT) + 0.5
    angle = torch.randn(TOKENS, TURNED // 2)
    rotation = torch.stack((angle.cos(), angle.sin()), 1)
    weight = (torch.randn(HEADS, PLAIN + VALUE, LATENT) * 0.3).bfloat16()
    keys, values = weight.split([PLAIN, VALUE], 1)
    q = torch.randn(TOKENS, HEADS, PLAIN + TURNED)
    records = torch.zeros(3, PAGE, LATENT + TURNED, dtype=torch.bfloat16)
    slots = torch.cat((torch.arange(2 * PAGE, 3 * PAGE), torch.arange(PAGE, PAGE + 6)))
    weights = LatentWeights(keys, norm, 1e-6)
    rows = PagedRows(
        torch.tensor([[2, 1]], dtype=torch.int32),
        torch.tensor([TOKENS], dtype=torch.int32),
        torch.tensor([0, TOKENS], dtype=torch.int32),
        TOKENS,
    )

    absorbed = absorbed_heads(q, made, weights, rotation, records, slots, halves=True)
    read = paged_latent(absorbed, records, rows, values=LATENT, scale=SCALE)
    got = latent_values(read, values).float()

    def turned(x: torch.Tensor) -> torch.Tensor:
        (cos, sin), (low, high) = rotation.double().unbind(1), x.double().chunk(2, -1)
        cos, sin = (part.view(TOKENS, *[1] * (x.dim() - 2), -1) for part in (cos, sin))
        return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)

    latent = made[:, :LATENT].double()
    latent = latent * (latent.square().mean(1, keepdim=True) + 1e-6).rsqrt() * norm
    expanded = torch.einsum("tl,hkl->thk", latent, weight.double())
    key_part = torch.einsum("thk,shk->hts", q[..., :PLAIN].double(), expanded[..., :PLAIN])
    turned_part = torch.einsum("thr,sr->hts", turned(q[..., PLAIN:]), turned(made[:, -TURNED:]))
    logits = (key_part + turned_part) * SCALE
    later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
    shares = logits.masked_fill(later, -torch.inf).softmax(-1)
    want = torch.einsum("hts,shv->thv", shares, expanded[..., PLAIN:]).flatten(1)
    assert_close(got, want.float(), Bounds(atol=0.05, rms=0.02))


@pytest.mark.parametrize(
    ("counts", "rows", "want"),
    [
        (None, 3, [((0, 3), (0, 3), 0)]),
        ([1, 1], 2, [((0, 2), (0, 2), 0)]),
        ([5], 1, [((0, 1), (0, 2), 3), ((0, 1), (2, 4), 1), ((0, 1), (4, 5), 0)]),
        (
            [1, 2, 2, 1, 1],
            5,
            [
                *[((0, 1), (0, 1), 0), ((1, 2), (1, 3), 0), ((2, 3), (3, 5), 0)],
                ((3, 5), (5, 7), 0),
            ],
        ),
    ],
)
def test_rows_go_in_groups_of_as_many_tokens_each(
    counts: list[int] | None, rows: int, want: list[tuple[tuple[int, int], tuple[int, int], int]]
) -> None:
    got = [
        ((some.start, some.stop), (tokens.start, tokens.stop), behind)
        for some, tokens, behind in spans(counts, rows, 2)
    ]

    assert got == want


def test_what_does_not_fit_is_refused() -> None:
    rows = PagedRows(torch.zeros(1, 1).int(), torch.ones(1).int(), None, 1)
    q, records = torch.zeros(1, 2, 40).bfloat16(), torch.zeros(2, PAGE, 40).bfloat16()

    with pytest.raises(ShapeError, match="40 of 40 channels"):
        paged_latent(q, records, rows, values=40, scale=1.0)
    with pytest.raises(ShapeError, match="in pages of 32 positions"):
        paged_latent(q, records[:, :32].contiguous(), rows, values=32, scale=1.0)
    with pytest.raises(ShapeError, match="length has shape"):
        paged_latent(q.repeat(2, 1, 1), records, rows, values=32, scale=1.0)
    weights = LatentWeights(torch.zeros(2, 8, 32).bfloat16(), torch.ones(32), 1e-6)
    turn, slots = torch.zeros(1, 2, 8), torch.zeros(1).long()
    with pytest.raises(ShapeError, match=r"made has shape \[1, 39\], expected \[1, 40\]"):
        absorbed_heads(
            *(torch.zeros(1, 2, 16), torch.zeros(1, 39), weights, turn, records, slots),
            halves=False,
        )
