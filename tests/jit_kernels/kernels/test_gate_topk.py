"""A gate's product and routing in one kernel: the bits of both ops, one after the other."""

from collections.abc import Iterator

import pytest
import torch

from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.vendor_library import why_no_deep_gemm
from tests.testing.compare import Bounds, assert_close

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(why_no_hopper() is not None, reason=f"{why_no_hopper()}"),
    pytest.mark.skipif(why_no_deep_gemm() is not None, reason=f"{why_no_deep_gemm()}"),
]
GATES = [(256, 4096), (256, 64), (384, 7168), (384, 192)]
# Of the kernel's blocks of 64 and 128 tokens, and of its pairs of blocks: some, whole, too few.
TOKENS = [1, 63, 64, 129, 700, 8449, 8577, 16_384]
Routed = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture(autouse=True)
def _of_few_tokens_too(  # pyright: ignore[reportUnusedFunction]
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    from jit_kernels.gate_topk import cuda_backend

    monkeypatch.setattr(cuda_backend, "LEAST_TOKENS", 1)
    with torch.device("cuda"):
        yield


def operands(tokens: int, experts: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows that lie apart, among NaN, and a weight."""
    rows = torch.full((tokens + 2, depth + 8), torch.nan).bfloat16()
    rows[1:-1, :depth] = torch.randn(tokens, depth)
    return rows[1:-1, :depth], (torch.randn(experts, depth) * depth**-0.5).bfloat16()


def assert_same(got: Routed, want: Routed) -> None:
    """Ask for the same experts and the same bits of weights."""
    assert torch.equal(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("experts", "depth"), GATES)
def test_bits_are_those_of_both_ops(experts: int, depth: int, tokens: int) -> None:
    from jit_kernels.gate_topk import cuda_backend, separate_backend

    x, weight = operands(tokens, experts, depth)
    bias, table = torch.randn(experts) * 0.1, torch.randint(experts, (500, 6))
    ids = torch.randint(600, (tokens,))
    assert cuda_backend.takes(x, weight)

    for top_k in (6, 8):
        case = x, weight, bias, top_k, 1.5
        assert_same(cuda_backend.gate_topk(*case, False), separate_backend.gate_topk(*case, True))
    case = x, weight, table, ids, 2.5
    assert_same(cuda_backend.gate_hashed(*case, False), separate_backend.gate_hashed(*case, True))


@pytest.mark.parametrize("spread", [0.0, 0.01, 6.0])
def test_alike_and_distant_logits_are_chosen_in_order(spread: float) -> None:
    from jit_kernels.gate_topk import cuda_backend, separate_backend

    x, weight = operands(300, 256, 128)
    case = x, weight * spread, torch.zeros(256), 6, 1.0

    got, want = cuda_backend.gate_topk(*case, False), separate_backend.gate_topk(*case, True)

    assert_same(got, want)
    if not spread:
        assert got[0].tolist() == [[0, 1, 2, 3, 4, 5]] * 300


def test_scores_are_those_of_exact_products() -> None:
    from jit_kernels.gate_topk import cuda_backend

    x, weight = operands(200, 256, 4096)

    experts, weights = cuda_backend.gate_topk(x, weight, torch.zeros(256), 6, 1.5, False)

    logits = x.double() @ weight.double().T
    best, chosen = torch.nn.functional.softplus(logits).sqrt().topk(6)
    assert float((experts == chosen).double().mean()) > 0.999
    assert_close(weights, (1.5 * best / best.sum(1, keepdim=True)).float(), Bounds(atol=1e-5))


def test_a_graph_routes_what_is_written_between_replays() -> None:
    from jit_kernels.gate_topk import cuda_backend, separate_backend

    x, weight = operands(8600, 256, 256)
    bias = torch.randn(256) * 0.1
    cuda_backend.gate_topk(x, weight, bias, 6, 1.5, False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # The kernel begins while the launch before it, which writes its rows, still runs.
        twice = x * 2
        got = cuda_backend.gate_topk(twice, weight, bias, 6, 1.5, False)
    for _ in range(3):
        x.copy_(torch.randn(x.shape))
        graph.replay()

        assert_same(got, separate_backend.gate_topk(x * 2, weight, bias, 6, 1.5, True))


def test_other_sizes_are_left_to_both_ops() -> None:
    from jit_kernels.gate_topk import cuda_backend

    x, weight = operands(10, 256, 128)

    assert cuda_backend.takes(x, weight)
    assert not cuda_backend.takes(x, weight[:100])
    assert not cuda_backend.takes(x[:, 32:], weight[:, 32:])
    assert not cuda_backend.takes(x[:, 4:68], weight[:, :64].contiguous())
    assert not cuda_backend.takes(x[:0], weight)
    few = cuda_backend.gate_topk(x, weight[:100], torch.zeros(100), 6, 1.0, False)
    assert int(few[0].max()) < 100
