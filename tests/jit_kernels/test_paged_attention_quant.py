"""Attention that is turned back and rounded, against the two calls that it stands for."""

import pytest
import torch

import jit_kernels.paged_attention_quant as op
from jit_kernels.checks import ShapeError
from jit_kernels.out_rope_quant import in_groups, out_rope_quant
from jit_kernels.paged_attention import SplitPlan, paged_attention
from jit_kernels.paged_attention_quant import paged_attention_quant, reference
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.compressed_steps import turns
from tests.testing.packed_pages import BY_3, BY_64, some_keys

pytestmark = pytest.mark.usefixtures("device")
SCALE = 512**-0.5


def numbers(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return what codes stand for, by groups of 128 channels."""
    return codes.float().unflatten(-1, (-1, 128)) * scales.unsqueeze(-1)


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("rows", "heads", "extra"), [(1, 64, 512), (3, 6, 192), (2, 64, 0)])
def test_it_is_attention_and_then_a_rotation_back_and_a_rounding(
    rows: int, heads: int, extra: int, deterministic: bool, settled: bool
) -> None:
    q, sink = torch.randn(rows, heads, 512).bfloat16(), torch.randn(heads)
    window = some_keys(rows, 128, BY_64, lengths=False)
    more = some_keys(rows, extra, BY_3, lengths=True) if extra else None
    rotation = turns(torch.arange(rows) * 9, 64)

    codes, scales = paged_attention_quant(
        q,
        window,
        more,
        rotation,
        groups=2,
        sink=sink,
        scale=SCALE,
        deterministic=deterministic,
        settled=settled,
    )

    out = paged_attention(q, window, more, sink=sink, scale=SCALE, deterministic=deterministic)
    want, want_scales = out_rope_quant(out, rotation, groups=2)
    assert_same_bits(codes, want)
    assert_same_bits(scales, want_scales)
    assert scales.stride() == want_scales.stride()
    other, other_scales = reference.attend(
        q, window, more, rotation, sink, SCALE, SplitPlan(), True, False
    )
    near = Bounds(atol=0.1, rtol=0.15, cosine=0.998, rms=0.06)
    assert_close(numbers(codes, scales), numbers(*in_groups(other, other_scales, 2)), near)


def test_what_does_not_fit_is_refused() -> None:
    q, sink, rotation = torch.zeros(2, 6, 512).bfloat16(), torch.zeros(6), torch.zeros(2, 2, 64)
    window = some_keys(2, 64, BY_64, lengths=True)

    def refused(why: str, groups: int = 2, rotation: torch.Tensor = rotation) -> None:
        with pytest.raises(ShapeError, match=why):
            paged_attention_quant(q, window, None, rotation, groups=groups, sink=sink, scale=SCALE)

    refused("6 heads of 512 channels do not make 4 groups", groups=4)
    refused("rotation", rotation=rotation[:1])
    refused("of 512 channels 63 turn", rotation=rotation[:, :, :63])


@pytest.mark.parametrize(
    ("attends", "rounds", "why"),
    [
        ("few_rows", "cuda", None),
        ("flash_mla", "cuda", "paged_attention is left to flash_mla"),
        ("triton", "triton", "paged_attention is left to triton"),
        ("few_rows", "triton", "out_rope_quant is left to triton"),
    ],
)
def test_a_backend_that_was_forced_for_one_of_the_calls_is_kept(
    attends: str, rounds: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch stands for both calls only where both would be its own."""
    found = {"paged_attention": attends, "out_rope_quant": rounds}
    monkeypatch.setattr(op, "chosen", lambda device: found)

    assert op._why_separate() == why
