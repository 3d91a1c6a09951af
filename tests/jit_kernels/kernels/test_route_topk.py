"""Routing on the device."""

import pytest
import torch

from jit_kernels.cuda_device import why_no_hopper
from jit_kernels.route_topk import cuda_backend, reference
from tests.testing.compare import Bounds, assert_close, assert_same_bits

SHAPES = [
    *((1, 3, 1), (9, 10, 3), (5, 129, 6)),
    *((tokens, 256, 6) for tokens in (1, 3, 63, 64, 65, 255, 256, 257, 1000, 16384)),
    *((1, 384, 6), (64, 384, 6), (257, 384, 6), (16384, 384, 6), (1, 256, 8), (2000, 256, 8)),
    *((33, 384, 8), (9000, 384, 8), (65, 512, 32), (257, 256, 7)),
    *((17, 256, 5), (3, 500, 9), (5, 40, 40), (4, 700, 6)),
]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(why_no_hopper() is not None, reason=f"{why_no_hopper()}"),
]


@pytest.mark.parametrize(("tokens", "experts", "top_k"), SHAPES)
def test_the_choice_equals_the_reference(tokens: int, experts: int, top_k: int) -> None:
    # Steps of 1/16 apart, some equal: no rounding decides, the lower id does.
    logits = torch.randint(-200, 200, (tokens, experts)) / 16
    bias = torch.zeros(experts)

    got = cuda_backend.route_topk(logits, bias, top_k, 1.5)

    want = reference.route_topk(logits, bias, top_k, 1.5)
    assert_same_bits(got[0], want[0], what="experts")
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")


@pytest.mark.parametrize(("tokens", "experts", "top_k"), SHAPES)
def test_the_bias_chooses_and_does_not_weigh(tokens: int, experts: int, top_k: int) -> None:
    logits, bias = torch.randn(tokens, experts), torch.randperm(experts) * 10.0

    got = cuda_backend.route_topk(logits, bias, top_k, 2.5)

    want = reference.route_topk(logits, bias, top_k, 2.5)
    assert_same_bits(got[0], want[0], what="experts")
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")


@pytest.mark.parametrize("close", [12, 40])
def test_scores_that_rough_ones_do_not_tell_apart_choose_as_the_reference(close: int) -> None:
    # Steps of 7e-5 between scores, where rough ones are up to 1.7e-4 off.
    tokens, count = 1001, 256
    logits = torch.randn(tokens, count) - 4.0
    places = torch.rand(tokens, count).argsort(1)[:, :close]
    logits.scatter_(1, places, 2.0 + torch.arange(close).expand(tokens, -1) / 4096)

    got = cuda_backend.route_topk(logits, torch.zeros(count), 6, 1.5)

    want = reference.route_topk(logits, torch.zeros(count), 6, 1.5)
    assert_same_bits(got[0], want[0], what="experts")
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")


@pytest.mark.parametrize("count", [256, 384])
@pytest.mark.parametrize(("lowest", "highest"), [(-960, -192), (-200, 3200), (1300, 1500)])
def test_scores_next_to_nothing_and_far_out_choose_as_the_reference(
    lowest: int, highest: int, count: int
) -> None:
    # Where rough scores are all alike, and where they are infinite.
    logits = torch.randint(lowest, highest, (1001, count)) / 16

    got = cuda_backend.route_topk(logits, torch.zeros(count), 6, 1.5)

    want = reference.route_topk(logits, torch.zeros(count), 6, 1.5)
    assert_same_bits(got[0], want[0], what="experts")
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")


def test_scores_are_exact_far_out() -> None:
    logits = torch.tensor([[-60.0, -30.0, -17.0, -10.0, -1e-3, 0.0, 1e-3, 10.0, 40.0, 90.0]]).T

    got = cuda_backend.route_topk(
        torch.cat((logits, torch.zeros_like(logits)), 1), torch.zeros(2), 2, 1.0
    )

    scores = torch.nn.functional.softplus(logits.double().cpu()).sqrt()
    zero = torch.log(torch.tensor(2.0, dtype=torch.float64, device="cpu")).sqrt()
    mine = torch.where(got[0] == 0, got[1], 0.0).sum(1, keepdim=True).cpu()
    assert_close(mine, (scores / (scores + zero)).float(), Bounds(rtol=2e-6))


def test_a_negative_bias_may_make_all_scores_negative() -> None:
    logits, bias = torch.randn(4, 12), -torch.arange(1, 13) * 100.0

    got = cuda_backend.route_topk(logits, bias, 3, 1.0)

    assert got[0].tolist() == [[0, 1, 2]] * 4


@pytest.mark.parametrize(("tokens", "experts", "top_k"), SHAPES)
def test_hashed_weights_equal_the_reference(tokens: int, experts: int, top_k: int) -> None:
    table = torch.rand(99, experts).argsort(1)[:, :top_k].contiguous()
    ids = torch.randint(99, (tokens,))
    # The launch before may write logits alone.
    logits = torch.randn(tokens, experts) * 4

    chosen, weights = cuda_backend.route_hashed(logits, table, ids, 2.0)

    want = reference.route_hashed(logits, table, ids, 2.0)
    assert_same_bits(chosen, want[0])
    assert_close(weights, want[1], Bounds(atol=1e-6, rtol=1e-5))


@pytest.mark.parametrize("top_k", [2, 40])
def test_an_id_that_is_none_has_the_experts_of_the_last(top_k: int) -> None:
    table = torch.arange(6 * top_k).view(6, top_k)
    ids = torch.tensor([-1, 5, 6, 2**40, -(2**63)])
    logits = torch.randn(5, 6 * top_k)

    chosen, _ = cuda_backend.route_hashed(logits, table, ids, 1.0)

    assert chosen.tolist() == [[*range(5 * top_k, 6 * top_k)]] * 5


@pytest.mark.parametrize(("count", "top_k"), [(256, 6), (384, 6), (256, 8), (384, 8), (256, 7)])
def test_experts_all_alike_are_chosen_in_order(count: int, top_k: int) -> None:
    logits = torch.zeros(3, count)
    logits[1, 100:105] = 1.0

    experts, weights = cuda_backend.route_topk(logits, torch.zeros(count), top_k, 1.0)

    first = [*range(top_k)]
    assert experts.tolist() == [first, [*range(100, 105), *first[: top_k - 5]], first]
    assert_close(weights.sum(1), torch.ones(3), Bounds(rtol=1e-6))


@pytest.mark.parametrize("count", [256, 384])
@pytest.mark.parametrize("steps", [2, 5, 40])
def test_many_equals_go_to_the_lower_expert(steps: int, count: int) -> None:
    # From a few that are as good as each other to more than a warp has lanes.
    tokens = 4097
    logits = torch.randint(0, steps, (tokens, count)) / 4
    bias = torch.randint(0, 2, (count,)) * 8.0

    got = cuda_backend.route_topk(logits, bias, 6, 1.5)

    want = reference.route_topk(logits, bias, 6, 1.5)
    assert_same_bits(got[0], want[0], what="experts")
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")


def test_rows_may_lie_apart_and_numbers_past_them_are_not_read() -> None:
    wide = torch.full((9, 260), torch.nan)
    wide[:, :256] = torch.randint(-200, 200, (9, 256)) / 16

    got = cuda_backend.route_topk(wide[:, :256], torch.zeros(256), 6, 1.5)

    want = reference.route_topk(wide[:, :256].contiguous(), torch.zeros(256), 6, 1.5)
    assert_same_bits(got[0], want[0], what="experts")
    assert_close(got[1], want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")


def test_numbers_that_are_none_still_choose_distinct_experts() -> None:
    logits = torch.randn(64, 256)
    logits[1::2, ::3] = torch.nan
    logits[5] = torch.nan

    experts, _ = cuda_backend.route_topk(logits, torch.zeros(256), 6, 1.0)

    assert int(experts.min()) >= 0
    assert int(experts.max()) < 256
    assert (experts.sort(1)[0].diff(dim=1) > 0).all()


def test_a_token_has_the_same_bits_in_any_company() -> None:
    logits, bias = torch.randn(16384, 256), torch.randn(256)
    whole = cuda_backend.route_topk(logits, bias, 6, 1.5)

    for rows in (slice(0, 1), slice(7, 300), slice(9000, 16384)):
        part = cuda_backend.route_topk(logits[rows], bias, 6, 1.5)
        assert_same_bits(part[0], whole[0][rows], what="experts")
        assert_same_bits(part[1], whole[1][rows], what="weights")


def test_a_graph_routes_other_tokens_when_replayed() -> None:
    logits, bias = torch.randn(300, 256), torch.zeros(256)
    table, ids = torch.randint(256, (500, 6)), torch.randint(500, (300,))
    moved = torch.empty_like(logits)
    cuda_backend.route_hashed(logits, table, ids, 1.5)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        experts, weights = cuda_backend.route_topk(logits, bias, 6, 1.5)
        moved.copy_(logits)
        # It reads what the launch before wrote.
        chosen, shares = cuda_backend.route_hashed(moved, table, ids, 1.5)

    for _ in range(3):
        logits.copy_(torch.randint(-200, 200, (300, 256)) / 16)
        ids.copy_(torch.randint(500, (300,)))
        graph.replay()
        want = reference.route_topk(logits, bias, 6, 1.5)
        assert_same_bits(experts, want[0], what="experts")
        assert_close(weights, want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights")
        want = reference.route_hashed(logits, table, ids, 1.5)
        assert_same_bits(chosen, want[0], what="experts of ids")
        assert_close(shares, want[1], Bounds(atol=1e-6, rtol=1e-5), what="weights of ids")
