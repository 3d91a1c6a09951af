"""Parts of weights."""

import torch

from layers.parallel.shares import Share
from layers.weights.part import Part, part_of
from layers.weights.weight_target import Fp8Target

HALF = Share(4, 4, 8)


def test_what_a_rank_keeps_whole_is_no_part() -> None:
    target = torch.zeros(8, 6)

    assert part_of(target, 8, 6) is target
    assert part_of(target, Share(0, 8, 8), 6) is target
    assert part_of(target[:, 0], 8) is not None


def test_a_part_has_the_shape_of_the_whole_and_its_place_in_it() -> None:
    every = torch.arange(48.0).view(8, 6)
    for rows, columns in ((HALF, 6), (8, Share(2, 3, 6)), (HALF, Share(2, 3, 6))):
        shares = [
            Share(0, size, size) if isinstance(size, int) else size for size in (rows, columns)
        ]
        target = torch.zeros(shares[0].count, shares[1].count)

        part = part_of(target, rows, columns)

        assert isinstance(part, Part)
        assert part.shape == (8, 6)
        assert part.device == target.device
        assert every[part.cut].shape == target.shape
        assert every[part.cut][0, 0] == 6 * shares[0].first + shares[1].first


def test_a_weight_of_one_axis_has_parts() -> None:
    part = part_of(torch.zeros(4), HALF)

    assert isinstance(part, Part)
    assert part.shape == (8,)
    assert torch.equal(torch.arange(8)[part.cut], torch.arange(4, 8))


def test_quantised_storage_has_parts() -> None:
    target = Fp8Target(torch.zeros(128, 256).to(torch.float8_e4m3fn), torch.zeros(1, 2))

    part = part_of(target, Share(128, 128, 384), 256)

    assert isinstance(part, Part)
    assert part.target is target
    assert part.shape == (384, 256)
