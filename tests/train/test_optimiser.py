"""Muon for matrices, AdamW for the rest, and moments that can be taken up."""

import pytest
import torch
from torch import Tensor

from tests.train.optimiser import Optimiser, OptimiserSettings, is_muon

NAMES = {
    "layers.0.attn.wq_a.weight": (6, 10),
    "layers.1.attn.wq_a.weight": (6, 10),
    "layers.0.attn.wkv.weight": (12, 8),
    "layers.0.attn.attn_sink": (4,),
    "embed.weight": (7, 5),
}


def _parameters(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator).requires_grad_()
        for name, shape in NAMES.items()
    }


def _set_gradients(parameters: dict[str, Tensor], seed: int) -> None:
    for (name, tensor), grad in zip(parameters.items(), _parameters(seed).values(), strict=True):
        del name
        tensor.grad = grad.detach()


def test_matrices_from_channels_to_channels_are_muons() -> None:
    assert is_muon("layers.0.attn.wq_b.weight")
    assert is_muon("layers.2.ffn.experts.3.w1.weight")
    assert is_muon("layers.2.attn.compressor.wkv.weight")
    for name in ("embed.weight", "layers.2.attn.compressor.ape", "layers.0.hc_attn_fn"):
        assert not is_muon(name)
    assert not is_muon("layers.2.attn.compressor.wgate.weight")


def test_what_is_no_matrix_moves_as_torchs_adam_moves_it() -> None:
    parameters, twins = _parameters(1), _parameters(1)
    optimiser = Optimiser(parameters, OptimiserSettings(muon=False))
    adam = torch.optim.Adam(list(twins.values()), lr=0.01, betas=(0.9, 0.98), eps=1e-9)

    for step in range(4):
        _set_gradients(parameters, 10 + step)
        _set_gradients(twins, 10 + step)
        optimiser.step(0.01)
        adam.step()

    for name, tensor in parameters.items():
        torch.testing.assert_close(tensor, twins[name], rtol=1e-5, atol=1e-6)


def test_a_matrix_moves_by_nearly_the_same_amount_in_all_directions() -> None:
    parameters = _parameters(1)
    name = "layers.0.attn.wq_a.weight"
    before = parameters[name].detach().clone()
    _set_gradients(parameters, 2)
    grad = parameters[name].grad

    Optimiser(parameters, OptimiserSettings(weight_decay=0.0)).step(0.5)

    moved = before - parameters[name].detach()
    values = torch.linalg.svdvals(moved) / (0.5 * 0.2 * 10**0.5)
    assert 0.6 < float(values.min()) <= float(values.max()) < 1.3
    assert grad is not None
    assert float((moved * grad).sum()) > 0


def test_matrices_decay_by_the_rate() -> None:
    parameters = _parameters(1)
    name = "layers.0.attn.wkv.weight"
    before = parameters[name].detach().clone()

    Optimiser(parameters, OptimiserSettings(weight_decay=0.5)).step(0.1)

    torch.testing.assert_close(parameters[name].detach(), before * 0.95)


def test_moments_can_be_taken_up_exactly() -> None:
    parameters, twins = _parameters(1), _parameters(1)
    optimiser, other = Optimiser(parameters), Optimiser(twins)
    _set_gradients(parameters, 5)
    optimiser.step(0.1)
    with torch.no_grad():
        for name, tensor in twins.items():
            tensor.copy_(parameters[name])

    held = {name: tensor.clone() for name, tensor in optimiser.tensors().items()}
    other.load(held, optimiser.steps)
    for one in (parameters, twins):
        _set_gradients(one, 6)
    optimiser.step(0.1)
    other.step(0.1)

    for name, tensor in parameters.items():
        assert torch.equal(tensor, twins[name]), name
    with pytest.raises(KeyError):
        other.load({}, 1)
