"""What is asked for ahead of time, in which steps."""

import pytest
import torch

from layers.fused.prefetch import MOST_TOKENS, WeightPrefetch


def test_steps_of_few_tokens_ask(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "layers.fused.prefetch.prefetch_weights", lambda weights: asked.append(len(weights))
    )
    ahead, weights = WeightPrefetch(device), [torch.zeros(16, device=device)] * 3

    for tokens in (0, 1, MOST_TOKENS, MOST_TOKENS + 1):
        ahead(tokens, weights)
    ahead(1, ())
    ahead(1, weights[:1])
    ahead.join()

    assert asked == [3, 3, 1]


@pytest.mark.gpu
def test_a_graph_holds_the_branch() -> None:
    device = torch.device("cuda")
    ahead, weight = WeightPrefetch(device), torch.randn(1 << 20, device=device)

    def step() -> torch.Tensor:
        ahead(1, [weight])
        out = weight * 2
        ahead.join()
        return out

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert torch.equal(found, weight * 2)
