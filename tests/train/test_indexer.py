"""The indexer's choice is the server's, and its loss is the divergence it says it is."""

import pytest
import torch
from torch import Tensor

from jit_kernels.select_topk import select_topk
from tests.testing.compare import Bounds, assert_close
from tests.train import segments
from tests.train.indexer import IndexInputs, choose, divergence, recall
from tests.train.regions import Regions

ROWS, LENGTH, HEADS, WIDTH, RATIO, TOP_K = 2, 64, 2, 4, 4, 5
BLOCKS = LENGTH // RATIO
RUN = Regions()


@pytest.fixture(autouse=True, params=[16, 2048])
def _segment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(segments, "SEGMENT", request.param)


def _inputs() -> IndexInputs:
    # Few heads and channels: many scores are exactly zero.
    q, keys = torch.randn(ROWS, LENGTH, HEADS, WIDTH), torch.randn(ROWS, BLOCKS, WIDTH)
    weights = torch.randn(ROWS, LENGTH, HEADS)
    return IndexInputs(q.requires_grad_(), keys.requires_grad_(), weights.requires_grad_(), RATIO)


def _scores(inputs: IndexInputs) -> Tensor:
    products = torch.einsum("bthc,bwc->bthw", inputs.q, inputs.keys)
    return (products.clamp(min=0.0) * inputs.weights.unsqueeze(3)).sum(2)


def _visible() -> Tensor:
    t, w = torch.arange(LENGTH).unsqueeze(1), torch.arange(BLOCKS)
    return (w < (t + 1) // RATIO).expand(ROWS, -1, -1)


def test_the_choice_is_that_of_the_servers_op_ties_included() -> None:
    inputs = _inputs()

    chosen = choose(inputs, TOP_K, RUN)

    seen = (torch.arange(LENGTH) + 1) // RATIO
    scores = _scores(inputs).detach()
    assert (scores == 0.0).sum() > 50
    for row in range(ROWS):
        picked = select_topk(scores[row], seen, top_k=TOP_K)
        want = torch.zeros(LENGTH, BLOCKS + 1, dtype=torch.bool)
        want.scatter_(1, picked.where(picked >= 0, BLOCKS), True)
        assert torch.equal(chosen[row], want[:, :BLOCKS])


@pytest.mark.parametrize("sparse", [False, True])
def test_loss_and_gradients_are_those_of_the_divergence(sparse: bool) -> None:
    inputs = _inputs()
    chosen = choose(inputs, TOP_K, RUN) if sparse else None
    among = _visible() if chosen is None else chosen
    mass = torch.rand(ROWS, LENGTH, BLOCKS) * among
    leaves = [inputs.q, inputs.keys, inputs.weights]

    got = divergence(inputs, mass, chosen, RUN)
    grads = torch.autograd.grad(3.0 * got, leaves)

    late = slice(RATIO - 1, None)
    log_p = torch.log_softmax(_scores(inputs).masked_fill(~among, -torch.inf)[:, late], -1)
    target = (mass / mass.sum(-1, keepdim=True))[:, late]
    terms = (torch.xlogy(target, target) - target * log_p).where(among[:, late], 0.0)
    want = terms.sum(-1).mean()
    goals = torch.autograd.grad(3.0 * want, leaves)
    bounds = Bounds(atol=1e-6, rtol=1e-4)
    assert_close(got, want, bounds, what="loss")
    for grad, goal in zip(grads, goals, strict=True):
        assert_close(grad, goal, bounds, what="gradient")


def test_the_loss_is_zero_where_scores_say_what_attention_does() -> None:
    inputs = _inputs()
    scores = _scores(inputs).detach().masked_fill(~_visible(), -torch.inf)
    mass = torch.softmax(scores, -1).nan_to_num(0.0)

    loss = divergence(inputs, mass, None, RUN)

    assert abs(float(loss.detach())) < 1e-6


def test_recall_counts_queries_that_have_a_choice() -> None:
    mass = torch.ones(1, LENGTH, BLOCKS) * _visible()[:1]
    first = RATIO * (TOP_K + 1) - 1
    chosen = torch.zeros(1, LENGTH, BLOCKS, dtype=torch.bool)
    assert float(recall(mass, chosen, RATIO, TOP_K)) == 0.0

    chosen[:, first:] = True
    assert float(recall(mass, chosen, RATIO, TOP_K)) == 1.0
