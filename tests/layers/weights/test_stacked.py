"""All experts' weights in one tensor of a file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from layers.parallel.shares import Share
from layers.weights.loading import WeightError, load_weights
from layers.weights.quant import FP4_VALUES
from layers.weights.random_weights import fill_random
from layers.weights.stacked import StackedWeight
from tests.layers.checkpoint_files import write_single

NAME = "mlp.experts.gate_up_proj"
# Experts, gates (and as many inputs of gates), inputs.
COUNT, GATES, INPUTS = 3, 6, 64


def in_order(dense: Tensor) -> Tensor:
    """Return outputs in storage order of a file's, [E, out, ...]."""
    return torch.cat((dense[:, ::2], dense[:, 1::2]), 1)


def test_a_plain_weight_is_turned_round_and_gates_come_first() -> None:
    stored = torch.randn(COUNT, INPUTS, 2 * GATES)
    storage = torch.zeros(COUNT, 2 * GATES, INPUTS)
    target = StackedWeight(storage, GATES, INPUTS, gated=True)

    target.put(stored)

    assert target.shape == stored.shape
    assert torch.equal(storage, in_order(stored.transpose(1, 2)))


def test_a_bias_and_a_product_without_gates() -> None:
    bias, weight = torch.randn(COUNT, 2 * GATES), torch.randn(COUNT, GATES, INPUTS)
    biases, outputs = torch.zeros(COUNT, 2 * GATES), torch.zeros(COUNT, INPUTS, GATES)
    targets = (
        StackedWeight(biases, GATES, None, gated=True),
        StackedWeight(outputs, INPUTS, GATES),
    )

    for target, stored in zip(targets, (bias, weight), strict=True):
        assert target.shape == stored.shape
        target.put(stored)

    assert torch.equal(biases, in_order(bias))
    assert torch.equal(outputs, weight.transpose(1, 2))


def packed() -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, scales, and what they stand for, number by number."""
    codes = torch.randint(0, 256, (COUNT, 2 * GATES, INPUTS // 32, 16), dtype=torch.uint8)
    scales = torch.randint(120, 134, (COUNT, 2 * GATES, INPUTS // 32), dtype=torch.uint8)
    dense = torch.zeros(COUNT, 2 * GATES, INPUTS)
    for e, row, i in torch.cartesian_prod(*map(torch.arange, dense.shape)).tolist():
        byte = int(codes[e, row, i // 32, i % 32 // 2])
        code = byte >> 4 if i % 2 else byte & 15
        value = -FP4_VALUES[code - 8] if code >= 8 else FP4_VALUES[code]
        dense[e, row, i] = value * 2.0 ** (int(scales[e, row, i // 32]) - 127)
    return codes, scales, dense


class OneWeight:
    """A network with one such weight."""

    def __init__(self) -> None:
        self.storage = torch.zeros(COUNT, 2 * GATES, INPUTS)

    def named_weights(self) -> Iterator[tuple[str, StackedWeight]]:
        """Yield it."""
        target = StackedWeight(self.storage, GATES, INPUTS, gated=True, packed=True)
        yield f"{NAME}_blocks", target


def test_codes_of_a_file_become_their_numbers(tmp_path: Path) -> None:
    (codes, scales, dense), model = packed(), OneWeight()
    write_single(tmp_path, {f"{NAME}_blocks": codes, f"{NAME}_scales": scales})

    load_weights(model, tmp_path, progress=False)

    assert torch.equal(model.storage, in_order(dense))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda codes, scales: {"blocks": codes}, "_blocks has no scales"),
        (lambda codes, scales: {"scales": scales}, "_blocks is missing"),
        (lambda codes, scales: {"blocks": codes.view(torch.int8), "scales": scales}, "expected U8"),
        (lambda codes, scales: {"blocks": codes.float(), "scales": scales}, "is F32, expected U8"),
        (lambda codes, scales: {"blocks": codes[1:], "scales": scales}, r"has shape \[2, 12, 2"),
        (
            lambda codes, scales: {"blocks": codes, "scales": scales[1:]},
            "has scales that has shape",
        ),
        (lambda codes, scales: {"blocks": codes, "scales": scales.float()}, "has scales of F32"),
        (
            lambda codes, scales: {"blocks": codes, "scales": scales | 255},
            "_scales in .* holds NaN",
        ),
    ],
)
def test_what_is_damaged_is_refused(
    change: Callable[[Tensor, Tensor], dict[str, Tensor]], message: str, tmp_path: Path
) -> None:
    codes, scales, _ = packed()
    write_single(tmp_path, {f"{NAME}_{k}": v.clone() for k, v in change(codes, scales).items()})

    with pytest.raises(WeightError, match=message):
        load_weights(OneWeight(), tmp_path, progress=False)


def test_a_rank_keeps_its_part_of_outputs_and_inputs() -> None:
    codes, scales, dense = packed()
    rows, columns = Share(2, 3, GATES), Share(16, 40, INPUTS)
    storage = torch.zeros(COUNT, 2 * rows.count, columns.count)
    target = StackedWeight(storage, rows, columns, gated=True, packed=True)

    target.put(codes, scales.view(torch.float8_e8m0fnu))

    gates, gated = in_order(dense)[:, :, columns.part].split(GATES, 1)
    assert torch.equal(storage, torch.cat((gates[:, rows.part], gated[:, rows.part]), 1))
    assert target.shape == codes.shape


def test_random_numbers_are_those_of_the_whole_in_any_part_and_form() -> None:
    whole = torch.zeros(COUNT, 2 * GATES, INPUTS)
    fill_random(NAME, StackedWeight(whole, GATES, INPUTS, gated=True), seed=1)
    assert 0.8 < float(whole.std()) * INPUTS**0.5 < 1.2

    codes = torch.zeros_like(whole)
    fill_random(NAME, StackedWeight(codes, GATES, INPUTS, gated=True, packed=True), seed=1)
    assert torch.equal(codes, whole)

    half = torch.zeros(COUNT, GATES, INPUTS)
    fill_random(NAME, StackedWeight(half, Share(3, 3, 6), INPUTS, gated=True), seed=1)

    gates, gated = whole.split(GATES, 1)
    assert torch.equal(half, torch.cat((gates[:, 3:], gated[:, 3:]), 1))
