"""Attention in segments and chunks against the plain formula, forward and backward."""

import pytest
import torch
from torch import Tensor

from tests.testing.compare import Bounds, assert_close
from tests.train import segments
from tests.train.attention_core import CoreShape, attend
from tests.train.regions import Regions

ROWS, LENGTH, HEADS, WIDTH, WINDOW = 2, 32, 3, 6, 8
CLOSE = Bounds(atol=1e-5, rtol=1e-4)


@pytest.fixture(autouse=True, params=[16, 2048])
def _segment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(segments, "SEGMENT", request.param)


def _inputs(ratio: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(ratio)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    result = {
        "q": normal(ROWS, LENGTH, HEADS, WIDTH),
        "kv": normal(ROWS, LENGTH, WIDTH),
        "sink": normal(HEADS),
    }
    return result | ({"blocks": normal(ROWS, LENGTH // ratio, WIDTH)} if ratio else {})


def _plain(inputs: dict[str, Tensor], ratio: int, chosen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the result, and the weights of all keys, blocks last."""
    t, s = torch.arange(LENGTH).unsqueeze(1), torch.arange(LENGTH)
    seen = ((s <= t) & (s > t - WINDOW)).expand(ROWS, -1, -1)
    keys = inputs["kv"]
    if ratio:
        keys = torch.cat((keys, inputs["blocks"]), 1)
        visible = torch.arange(LENGTH // ratio) < (t + 1) // ratio
        visible = visible.expand(ROWS, -1, -1) if chosen is None else chosen
        seen = torch.cat((seen, visible), 2)
    scores = torch.einsum("bthd,bkd->bthk", inputs["q"], keys) * WIDTH**-0.5
    scores = scores.masked_fill(~seen.unsqueeze(2), -torch.inf)
    sink = inputs["sink"].view(1, 1, -1, 1).expand(ROWS, LENGTH, -1, 1)
    weights = torch.softmax(torch.cat((scores, sink), 3), -1)[..., :-1]
    return torch.einsum("bthk,bkd->bthd", weights, keys), weights


def _some_blocks(ratio: int) -> Tensor:
    """Return a choice among visible blocks that leaves some queries without any."""
    t, w = torch.arange(LENGTH).unsqueeze(1), torch.arange(LENGTH // ratio)
    chosen = (w < (t + 1) // ratio) & ((t + w) % 3 == 0)
    return chosen.expand(ROWS, -1, -1).contiguous()


@pytest.mark.parametrize(("ratio", "choice"), [(0, False), (4, False), (4, True), (8, False)])
def test_result_and_gradients_are_those_of_the_formula(ratio: int, choice: bool) -> None:
    inputs = _inputs(ratio)
    chosen = _some_blocks(ratio) if choice else None
    want, weights = _plain(inputs, ratio, chosen)
    upstream = torch.randn(want.shape)
    goals = torch.autograd.grad(want, list(inputs.values()), upstream)

    shape = CoreShape(WINDOW, ratio, WIDTH**-0.5, mass=ratio > 0)
    got, mass = attend(
        inputs["q"],
        inputs["kv"],
        inputs.get("blocks"),
        inputs["sink"],
        chosen=chosen,
        shape=shape,
        run=Regions(),
    )
    grads = torch.autograd.grad(got, list(inputs.values()), upstream)

    assert_close(got, want, CLOSE, what="result")
    for name, grad, goal in zip(inputs, grads, goals, strict=True):
        assert_close(grad, goal, CLOSE, what=f"gradient of {name}")
    if ratio:
        assert mass is not None
        assert_close(mass, weights[..., LENGTH:].mean(2), CLOSE, what="mass")
        assert not mass.requires_grad
    else:
        assert mass is None
