"""The second stream: what it runs comes after what was before, and before what comes after."""

import pytest
import torch

from layers.blocks.side_stream import FEW_TOKENS, SideStream


def test_a_block_beside_is_done_when_joined(device: torch.device) -> None:
    side = SideStream(device)
    for tokens in (1, FEW_TOKENS, FEW_TOKENS + 1):
        x = torch.randn(512, 512, dtype=torch.float64)
        before = x @ x
        with side.beside(tokens):
            twice = before @ before
        with side.beside(tokens, branch=1):
            less = before - 1
        other = before + 1
        side.join()
        assert torch.equal(other, x @ x + 1)
        assert torch.equal(less, x @ x - 1)
        assert torch.equal(twice, (x @ x) @ (x @ x))


def test_a_join_without_a_fork_waits_for_nothing(device: torch.device) -> None:
    SideStream(device).join()


@pytest.mark.gpu
def test_a_graph_holds_all_branches() -> None:
    device = torch.device("cuda")
    side = SideStream(device)
    x = torch.zeros(1 << 20, device=device)

    def added() -> torch.Tensor:
        with side.beside(1):
            left = x + 1
        with side.beside(1, branch=1):
            other = x * 4
        right = x * 2
        side.join()
        return left + right + other

    added()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = added()
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert float(found.min()) == float(found.max()) == 7 * value + 1
