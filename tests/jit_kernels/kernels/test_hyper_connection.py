"""Hyper-connections in one launch each, against the reference."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.hyper_connection import cluster_backend, reference, triton_post
from jit_kernels.hyper_connection.mix_rows import ranks_of
from tests.jit_kernels.kernels.mixes import (
    EPS,
    Owed,
    as_packed,
    exact_post,
    mix_all,
    owed,
    post_bounds,
    weights,
)
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import Bounds, assert_close
from tests.testing.rows import assert_rows_independent

SHAPES = with_large(
    [(1, 4, 5), (18, 4, 24), (2, 3, 130)],
    [
        *((1, 4, 4096), (257, 4, 4096), (2100, 4, 1025), (700, 3, 999)),
        *((1500, 4, 4096), (300, 4, 1032), (5000, 4, 40)),
    ],
)
TYPES = [torch.float32, torch.bfloat16]
Weights = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def as_taken(mine: Weights, dtype: torch.dtype) -> Weights:
    """Return weights as clusters take them, which have two bytes for a number of `fn`.

    What they make of it is held to the same bounds. `test_mix_rows` says how close two bytes come.
    """
    fn, base, scale = mine
    if dtype != torch.bfloat16 or fn.shape[1] % 4 or ranks_of(fn.shape[1] // 4) is None:
        return mine
    return as_packed(fn).float(), base, scale


def bounds(dtype: torch.dtype) -> Bounds:
    """Return one step of the result's type, and what float32 sums differ by."""
    return Bounds(atol=1e-5, rtol=1e-5) if dtype == torch.float32 else Bounds(1e-5, 2.0**-7)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "count", "width"), SHAPES)
def test_streams_are_mixed_back_and_in_as_by_the_reference(
    tokens: int, count: int, width: int, dtype: torch.dtype
) -> None:
    x, mine, gain = owed(tokens, count, width, dtype), weights(count, width), torch.randn(width)

    after, mixed, shares = cluster_backend.mhc_post_pre_norm(*x, *mine, gain, iterations=20, **EPS)

    assert_close(after, reference.mhc_post(*x), bounds(dtype), what="streams")
    # What is mixed in is held to what lies there: a step of its type is 1e-3 of a logit.
    taken = as_taken(mine, dtype)
    want, want_shares = reference.mhc_pre_norm(after, *taken, gain, iterations=20, **EPS)
    wide = Bounds(atol=2e-5, rtol=2e-5) if dtype == torch.float32 else Bounds(1e-3, 2.0**-6)
    assert_close(shares[:, count], exact_post(after, *taken), post_bounds(dtype), what="post")
    assert_close(mixed, want, wide, what="input")
    assert_close(shares, want_shares, Bounds(atol=2e-5), what="shares")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "count", "width"), SHAPES)
def test_the_head_equals_the_reference(
    tokens: int, count: int, width: int, dtype: torch.dtype
) -> None:
    x, (fn, base, scale) = torch.randn(tokens, count, width).to(dtype), weights(count, width)
    mine = fn[:count], base[:count], scale[:1]

    got = cluster_backend.mhc_head(x, *mine, **EPS)

    taken = as_taken(mine, dtype)
    assert_close(got, reference.mhc_head(x, *taken, **EPS), bounds(dtype))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("tokens", "count", "width"), SHAPES)
def test_post_equals_the_reference(tokens: int, count: int, width: int, dtype: torch.dtype) -> None:
    x = owed(tokens, count, width, dtype)

    got = triton_post.mhc_post(*x)

    assert_close(got, reference.mhc_post(*x), bounds(dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1024, 4096])
def test_a_token_has_the_same_bits_in_any_company(width: int) -> None:
    mine, gain = weights(4, width), torch.randn(width)

    def mix(*x: torch.Tensor) -> torch.Tensor:
        parts = cluster_backend.mhc_post_pre_norm(*x, *mine, gain, iterations=2, **EPS)
        return torch.cat([part.flatten(1).float() for part in parts], 1)

    assert_rows_independent(mix, [*owed(2200, 4, width)])


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1024, 4096])
def test_one_graph_of_several_launches_mixes_what_it_is_given(width: int) -> None:
    x, mine, gain = owed(40, 4, width), weights(4, width), torch.randn(width)
    mix_all(cluster_backend, x, mine, gain)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        parts = [mix_all(cluster_backend, x.first(rows), mine, gain) for rows in (40, 1, 17)]

    for _ in range(3):
        x.y.normal_()
        x.streams.normal_()
        graph.replay()
        for rows, part in zip((40, 1, 17), parts, strict=True):
            want = mix_all(cluster_backend, x.first(rows), mine, gain)
            assert all(map(torch.equal, part, want))


@pytest.mark.gpu
@pytest.mark.parametrize(("tokens", "width"), [(1, 4096), (40, 4096), (300, 4096)])
def test_a_mix_that_is_prepared_early_mixes_what_was_mixed_before(tokens: int, width: int) -> None:
    x, mine, gain = owed(tokens, 4, width), weights(4, width), torch.ones(width)

    def layers(*, one_by_one: bool = False) -> Owed:
        now = x
        for _ in range(8):
            streams, mixed, shares = cluster_backend.mhc_post_pre_norm(
                *now, *mine, gain, iterations=3, **EPS
            )
            now = Owed(mixed, streams, shares)
            if one_by_one:
                torch.cuda.synchronize()
        return now

    layers()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = layers()

    for _ in range(5):
        x.streams.normal_()
        graph.replay()
        assert all(map(torch.equal, got, layers(one_by_one=True)))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1024, 4096])
def test_a_token_of_nan_harms_no_other(width: int) -> None:
    x, mine, gain = owed(100, 4, width), weights(4, width), torch.randn(width)
    want = mix_all(cluster_backend, x, mine, gain)
    x.y[37] = torch.nan
    x.streams[37] = torch.nan

    got = mix_all(cluster_backend, x, mine, gain)

    others = torch.arange(100) != 37
    for mine_now, before in zip(got, want, strict=True):
        assert torch.equal(mine_now[others], before[others])
    assert got[1][37].isnan().all()


def _of_the_head(mine: Weights) -> Weights:
    """Return the weights that `mix_all` gives the head of clusters, as they take them."""
    fn, base, scale = mine
    return as_taken((fn[:4], base[:4], scale[:1]), torch.bfloat16)


def assert_mixed_alike(got: list[torch.Tensor], x: Owed, mine: Weights, gain: torch.Tensor) -> None:
    """Hold what `mix_all` gives to what the reference mixes back, and mixes these streams into."""
    taken = as_taken(mine, torch.bfloat16)
    want = reference.mhc_post(*x)
    head = reference.mhc_head(x.streams, *_of_the_head(mine), **EPS)
    mixed, shares = reference.mhc_pre_norm(got[0], *taken, gain, iterations=20, **EPS)
    assert_close(got[0], want, bounds(torch.bfloat16), what="streams")
    assert float((got[0] != want).float().mean()) < 1e-3
    assert_close(got[1], mixed, Bounds(1e-3, 2.0**-6), what="input")
    assert_close(got[2], shares, Bounds(atol=2e-5), what="shares")
    assert_close(got[3], head, bounds(torch.bfloat16), what="head")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tokens", "width"),
    [
        *((18, 256), (5, 512), (300, 1024), (33, 2048), (1, 4096), (17, 4096), (700, 4096)),
    ],
)
def test_clusters_equal_the_reference(tokens: int, width: int) -> None:
    x, mine, gain = owed(tokens, 4, width), weights(4, width), torch.randn(width)

    got = mix_all(cluster_backend, x, mine, gain)

    assert_mixed_alike(got, x, mine, gain)
    exact = exact_post(got[0], as_packed(mine[0]), *mine[1:])
    assert_close(got[2][:, 4], exact, post_bounds(torch.float32), what="post")


@pytest.mark.gpu
@pytest.mark.parametrize("width", [256, 512, 1024, 2048, 4096])
def test_clusters_mix_any_number_of_tokens_alike(width: int) -> None:
    x, mine, gain = owed(4097, 4, width), weights(4, width), torch.randn(width)

    whole = mix_all(cluster_backend, x, mine, gain)

    assert_mixed_alike(whole, x, mine, gain)
    for tokens in (1, 2, 3, 7, 16, 63, 64, 65, 127, 128, 129, 256, 400, 500, 1000):
        few = mix_all(cluster_backend, x.first(tokens), mine, gain)
        assert all(torch.equal(part, rows[:tokens]) for part, rows in zip(few, whole, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1024, 4096])
@pytest.mark.parametrize("tokens", [1, 129, 3000])
def test_clusters_give_the_same_bits_each_time(tokens: int, width: int) -> None:
    x, mine, gain = owed(tokens, 4, width), weights(4, width), torch.randn(width)
    first = mix_all(cluster_backend, x, mine, gain)

    for _ in range(50):
        assert all(map(torch.equal, mix_all(cluster_backend, x, mine, gain), first))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1024, 4096])
@pytest.mark.parametrize("tokens", [3, 250])
def test_clusters_read_no_more_than_the_streams(tokens: int, width: int) -> None:
    mine, gain = weights(4, width), torch.randn(width)
    y, streams, shares = owed(tokens, 4, width)
    wider = torch.full((2 * tokens, 6, width + 24), torch.nan).bfloat16()
    apart = wider[::2, 1:5, 8 : width + 8].copy_(streams)
    # Shares end where a page of NaN begins.
    padded = torch.full((tokens + 16, 5, 4), torch.nan)
    close = padded[:tokens].copy_(shares)

    got = mix_all(cluster_backend, Owed(y, apart, close), mine, gain)

    want = mix_all(cluster_backend, Owed(y, streams, shares), mine, gain)
    assert all(map(torch.equal, got, want))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1024, 4096])
@pytest.mark.parametrize("tokens", [3, 250])
def test_clusters_write_no_more_than_the_tokens(
    tokens: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, mine, gain = owed(tokens, 4, width), weights(4, width), torch.randn(width)
    made: list[torch.Tensor] = []

    def guarded(like: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
        whole = torch.full((sizes[0] + 32, *sizes[1:]), 7.0, dtype=like.dtype)
        made.append(whole)
        return whole[: sizes[0]]

    monkeypatch.setattr(torch.Tensor, "new_empty", guarded)
    mix_all(cluster_backend, x, mine, gain)

    assert len(made) >= 3
    assert all(bool((whole[tokens:] == 7.0).all()) for whole in made)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1024, 4096])
def test_two_streams_of_launches_mix_at_once(width: int) -> None:
    mine, gain = weights(4, width), torch.randn(width)
    inputs = [owed(200, 4, width) for _ in range(2)]
    wants = [mix_all(cluster_backend, x, mine, gain) for x in inputs]
    lanes = [torch.cuda.Stream() for _ in inputs]
    torch.cuda.synchronize()
    gots: list[list[torch.Tensor]] = []
    for _ in range(20):
        for x, lane in zip(inputs, lanes, strict=True):
            with torch.cuda.stream(lane):
                gots.append(mix_all(cluster_backend, x, mine, gain))
    torch.cuda.synchronize()

    for i, got in enumerate(gots):
        assert all(map(torch.equal, got, wants[i % 2]))


@pytest.mark.gpu
@pytest.mark.parametrize("width", [1024, 4096])
def test_clusters_take_streams_that_are_one_embedding(width: int) -> None:
    y, streams, shares = owed(33, 4, width)
    same, mine, gain = streams[:, :1].expand(-1, 4, -1), weights(4, width), torch.randn(width)

    got = mix_all(cluster_backend, Owed(y, same, shares), mine, gain)

    want = mix_all(cluster_backend, Owed(y, same.contiguous(), shares), mine, gain)
    assert all(map(torch.equal, got, want))


@pytest.mark.gpu
@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_clusters_balance_even_and_lopsided_matrices(spread: float, iterations: int) -> None:
    x, (fn, base, scale), gain = owed(300, 4, 1024), weights(4, 1024), torch.randn(1024)
    mine = fn, base * spread, scale * spread

    got = cluster_backend.mhc_post_pre_norm(*x, *mine, gain, iterations=iterations, **EPS)

    # Logits of order `spread` are as many times less exact.
    taken = as_taken(mine, torch.bfloat16)
    want = reference.mhc_pre_norm(got[0], *taken, gain, iterations=iterations, **EPS)
    assert_close(got[2], want[1], Bounds(atol=2e-5 * spread), what="shares")


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_the_device_holds_clusters_of_any_size(ranks: int) -> None:
    assert cluster_backend.most_groups(torch.zeros(1).device, ranks) * ranks >= 64


@pytest.mark.gpu
@pytest.mark.parametrize("width", [24, 1032, 5120, 7168, 8192])
def test_other_sizes_go_through_the_reference(width: int) -> None:
    x, mine, gain = owed(70, 4, width), weights(4, width), torch.randn(width)

    got = mix_all(cluster_backend, x, mine, gain)

    assert all(map(torch.equal, got, mix_all(reference, x, mine, gain)))


@pytest.mark.gpu
def test_what_balancing_cannot_divide_by_goes_through_the_reference() -> None:
    x, mine, gain = owed(70, 4, 4096), weights(4, 4096), torch.randn(4096)
    small = {"norm_eps": 1e-6, "hc_eps": 1e-12}

    got = cluster_backend.mhc_post_pre_norm(*x, *mine, gain, iterations=3, **small)

    want = reference.mhc_post_pre_norm(*x, *mine, gain, iterations=3, **small)
    assert all(map(torch.equal, got, want))


def test_five_streams_are_refused() -> None:
    with pytest.raises(ShapeError, match="5 streams, expected 1 to 4"):
        triton_post.mhc_post(*owed(1, 5, 8))
