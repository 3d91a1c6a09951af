"""Names that files have beside those of the network: scales, and heads for drafts."""

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


def test_a_layer_that_is_a_head_for_drafts_is_passed_over_and_no_other(tmp_path: Path) -> None:
    tensors = {NAME: torch.ones(130, 200), "model.layers.7.norm.weight": torch.zeros(2)}
    write_single(tmp_path, tensors)
    with pytest.raises(WeightError, match=r"model\.layers\.7\.norm\.weight is unexpected"):
        load_weights(OneWeight(), tmp_path, progress=False)

    write_single(tmp_path, tensors | {"model.layers.7.eh_proj.weight": torch.zeros(2, 4)})
    model = OneWeight()

    load_weights(model, tmp_path, progress=False)

    assert bool((model.weight == 1).all())
