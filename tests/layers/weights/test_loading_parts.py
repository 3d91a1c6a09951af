"""Parts of weights from files, and random ones: ranks together hold what one rank holds alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from layers.parallel.shares import Share, Shares, Size
from layers.weights.checkpoint import WeightError
from layers.weights.loading import Target, fill_dummy, load_weights
from layers.weights.part import part_of
from layers.weights.quant import quantise_fp4, quantise_fp8
from layers.weights.weight_target import Fp4Target, Fp8Target, StoredForm, TwinTarget
from tests.layers.checkpoint_files import write_single

NAME, SCALE = "layers.0.ffn.experts.0.w1.weight", "layers.0.ffn.experts.0.w1.scale"
# Three blocks and four: a world of two shares the rows unevenly.
ROWS, COLUMNS = 384, 512
CPU = torch.device("cpu")


@dataclass
class Kept:
    """What a rank keeps of one weight, and the tensors that store it, rows first."""

    target: Target
    stored: list[Tensor]

    def named_weights(self) -> Iterator[tuple[str, Target]]:
        yield NAME, self.target


def keep(kind: str, rows: Size, columns: Size) -> Kept:
    """Return storage of `kind` for a part."""
    high, wide = (size.count if isinstance(size, Share) else size for size in (rows, columns))
    if kind in ("float32", "bfloat16"):
        plain = torch.zeros(high, wide, dtype=getattr(torch, kind))
        return Kept(part_of(plain, rows, columns), [plain])
    codes = torch.zeros(high, wide).to(torch.float8_e4m3fn)
    fp8 = [codes, torch.zeros(-(-high // 128), -(-wide // 128))]
    fp4 = [
        torch.zeros(high, wide // 4, dtype=torch.int16),
        torch.zeros(high, wide // 32, dtype=torch.uint8),
    ]
    if kind == "fp8":
        return Kept(part_of(Fp8Target(*fp8), rows, columns), fp8)
    if kind == "fp4":
        return Kept(part_of(Fp4Target(*fp4), rows, columns), fp4)
    both = TwinTarget(Fp4Target(*fp4), Fp8Target(*fp8))
    return Kept(part_of(both, rows, columns), [*fp4, *fp8])


def write(folder: Path, form: StoredForm, scales: torch.dtype = torch.float8_e8m0fnu) -> None:
    """Write the weight."""
    generator = torch.Generator().manual_seed(5)
    numbers = torch.randn(ROWS, COLUMNS, generator=generator) * 0.05
    if form == "plain":
        write_single(folder, {NAME: numbers.bfloat16()})
        return
    codes, scale = (quantise_fp8 if form == "fp8" else quantise_fp4)(numbers)
    write_single(folder, {NAME: codes, SCALE: scale.to(torch.float32).to(scales)})


def sizes(axis: str, rank: int, world: int) -> tuple[Size, Size]:
    """Return the rows and columns of a rank."""
    shares = Shares(rank, world)
    if axis == "rows":
        return shares.inner(ROWS, blocks=True), COLUMNS
    return ROWS, shares.inner(COLUMNS, blocks=True)


def bits(stored: Tensor) -> Tensor:
    """Return the same bytes as integers."""
    return stored.contiguous().view(torch.uint8).view(*stored.shape, -1)


FORMS: list[tuple[StoredForm, str]] = [
    *((form, kind) for form in ("plain", "fp8", "fp4") for kind in ("float32", "bfloat16", "fp8")),
    *((form, kind) for form in ("plain", "fp4") for kind in ("fp4", "both")),
]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("axis", ["rows", "columns"])
@pytest.mark.parametrize(("form", "kind"), FORMS)
def test_ranks_together_hold_what_one_rank_holds(
    tmp_path: Path, form: StoredForm, kind: str, axis: str, world: int
) -> None:
    if world == 3:
        world = 2 if axis == "rows" else 4
    write(tmp_path, form)
    whole = keep(kind, ROWS, COLUMNS)
    load_weights(whole, tmp_path, progress=False)
    parts = [keep(kind, *sizes(axis, rank, world)) for rank in range(world)]

    for part in parts:
        load_weights(part, tmp_path, progress=False)

    for i, want in enumerate(whole.stored):
        got = torch.cat([bits(part.stored[i]) for part in parts], 0 if axis == "rows" else 1)
        assert torch.equal(got, bits(want))
        assert bits(want).any()


@pytest.mark.parametrize("scales", [torch.float8_e8m0fnu, torch.float32])
@pytest.mark.parametrize(("form", "kind"), [("fp8", "fp8"), ("fp4", "fp4"), ("fp4", "fp8")])
def test_scales_of_each_dtype_are_cut(
    tmp_path: Path, form: StoredForm, kind: str, scales: torch.dtype
) -> None:
    write(tmp_path, form, scales)
    whole = keep(kind, ROWS, COLUMNS)
    load_weights(whole, tmp_path, progress=False)
    for axis, dim in (("rows", 0), ("columns", 1)):
        parts = [keep(kind, *sizes(axis, rank, 2)) for rank in range(2)]

        for part in parts:
            load_weights(part, tmp_path, progress=False)

        got = torch.cat([part.stored[1] for part in parts], dim)
        assert torch.equal(got, whole.stored[1])


@pytest.mark.parametrize("form", ["plain", "fp8", "fp4"])
def test_plain_storage_takes_parts_that_cut_blocks(tmp_path: Path, form: StoredForm) -> None:
    """Heads and tokens of the vocabulary are no multiples of 128, or of 32."""
    write(tmp_path, form)
    whole = keep("float32", ROWS, COLUMNS)
    load_weights(whole, tmp_path, progress=False)
    rows, columns = Share(37, 101, ROWS), Share(9, 301, COLUMNS)
    part = keep("float32", rows, columns)

    load_weights(part, tmp_path, progress=False)

    assert torch.equal(part.stored[0], whole.stored[0][37:138, 9:310])


def test_a_weight_of_one_axis_is_cut(tmp_path: Path) -> None:
    write_single(tmp_path, {NAME: torch.arange(8.0)})
    half = torch.zeros(4)

    load_weights(Kept(part_of(half, Share(4, 4, 8)), [half]), tmp_path, progress=False)

    assert torch.equal(half, torch.arange(4.0, 8.0))


def test_a_part_is_refused_where_the_whole_has_another_shape(tmp_path: Path) -> None:
    """Rows are cut from what the configuration says, never from what a file happens to hold."""
    write_single(tmp_path, {NAME: torch.zeros(10, 4)})
    part = keep("float32", Share(0, 4, 8), 4)

    with pytest.raises(WeightError, match=r"shape \[10, 4\], expected \[8, 4\]"):
        load_weights(part, tmp_path, progress=False)


def test_a_part_whose_scale_holds_nan_is_refused(tmp_path: Path) -> None:
    codes, scale = quantise_fp8(torch.randn(ROWS, COLUMNS))
    wrong = scale.to(torch.float32)
    wrong[2, 3] = torch.nan
    write_single(tmp_path, {NAME: codes, SCALE: wrong})

    with pytest.raises(WeightError, match="holds NaN"):
        load_weights(keep("fp8", *sizes("rows", 1, 2)), tmp_path, progress=False)


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_random_parts_of_plain_numbers_are_those_of_the_whole(axis: str) -> None:
    whole = keep("bfloat16", ROWS, COLUMNS)
    parts = [keep("bfloat16", *sizes(axis, rank, 2)) for rank in range(2)]

    for one in (whole, *parts):
        fill_dummy(one, 3)

    got = torch.cat([part.stored[0] for part in parts], 0 if axis == "rows" else 1)
    assert torch.equal(got, whole.stored[0])


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_random_parts_of_quantised_storage_differ_and_are_spread_as_the_whole(axis: str) -> None:
    parts = [keep("fp8", *sizes(axis, rank, 2)) for rank in range(2)]

    for part in parts:
        fill_dummy(part, 3)

    for part in parts:
        codes, scales = part.stored
        numbers = codes.float() * scales[0, 0]
        assert float(numbers.var() * COLUMNS) == pytest.approx(1.0, rel=0.05)
    low, high = (part.stored[0].float()[:64, :64] for part in parts)
    assert not torch.equal(low, high)
