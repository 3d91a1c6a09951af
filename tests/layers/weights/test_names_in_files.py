"""Names that files have beside those of the network: scales, and heads for drafts."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from layers.weights.loading import WeightError, load_weights
from layers.weights.quant import dequantise_fp8, quantise_fp8
from tests.layers.checkpoint_files import write_single

NAME = "model.layers.0.self_attn.o_proj.weight"


class OneWeight:
    """A network with one weight."""

    def __init__(self) -> None:
        self.weight = torch.zeros(130, 200)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield it."""
        yield NAME, self.weight


def test_a_scale_may_have_the_name_that_v3_gives_it(tmp_path: Path) -> None:
    codes, powers = quantise_fp8(torch.randn(130, 200))
    scales = powers.float() * 1.3
    write_single(tmp_path, {NAME: codes, f"{NAME}_scale_inv": scales})
    model, want = OneWeight(), torch.empty(130, 200)
    dequantise_fp8(codes, scales, want)

    load_weights(model, tmp_path, progress=False)

    assert torch.equal(model.weight, want)


@pytest.mark.parametrize("draft", [False, True])
def test_layers_behind_the_last_one_are_passed_over_and_drafts_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, draft: bool
) -> None:
    tensors = {NAME: torch.ones(130, 200), "model.layers.7.norm.weight": torch.zeros(2)}
    write_single(
        tmp_path,
        tensors | ({"model.layers.7.eh_proj.weight": torch.zeros(2, 4)} if draft else {}),
    )
    model = OneWeight()

    with caplog.at_level(logging.WARNING, logger="umbra"):
        load_weights(model, tmp_path, progress=False)

    assert bool((model.weight == 1).all())
    assert len(caplog.records) == (not draft)


def test_what_a_layer_of_the_network_does_not_have_is_refused(tmp_path: Path) -> None:
    write_single(
        tmp_path, {NAME: torch.ones(130, 200), "model.layers.0.norm.weight": torch.zeros(2)}
    )

    with pytest.raises(WeightError, match=r"model\.layers\.0\.norm\.weight is unexpected"):
        load_weights(OneWeight(), tmp_path, progress=False)
