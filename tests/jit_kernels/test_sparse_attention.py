"""Attention over named keys, with a sink."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.sparse_attention import sparse_attention
from tests.testing.compare import Bounds, assert_close, assert_same_bits
from tests.testing.rows import assert_rows_independent


def keys_of(count: int, width: int) -> torch.Tensor:
    """Return keys whose first row stands for none."""
    keys = torch.randn(count, width)
    keys[0] = 0.0
    return keys


def formula(
    q: torch.Tensor, keys: torch.Tensor, index: torch.Tensor, sink: torch.Tensor, scale: float
) -> torch.Tensor:
    """Return the attention of one token [H, D], in float64."""
    mine = keys[index[index != 0]].double()
    logits = scale * q.double() @ mine.T
    p = torch.cat((logits, sink.double().unsqueeze(1)), 1).softmax(1)[:, :-1]
    return (p @ mine).float()


@pytest.mark.parametrize(
    ("tokens", "heads", "width", "slots"), [(1, 1, 4, 64), (5, 6, 48, 128), (30, 9, 33, 192)]
)
def test_attention_equals_the_formula(tokens: int, heads: int, width: int, slots: int) -> None:
    q, keys, sink = torch.randn(tokens, heads, width), keys_of(300, width), torch.randn(heads)
    index = torch.randint(300, (tokens, slots))
    index[:, 7] = 1

    got = sparse_attention(q, keys, index, sink=sink, scale=0.3)

    want = [formula(q[t], keys, index[t], sink, 0.3) for t in range(tokens)]
    assert_close(got, torch.stack(want), Bounds(atol=1e-5))


def sliding(tokens: int) -> torch.Tensor:
    """Return windows of 128 keys that slide, and 128 shared keys of which later tokens see more."""
    window = torch.arange(tokens).unsqueeze(1) + torch.arange(1, 129)
    shared = (torch.arange(128) + 1 + 128 + tokens).expand(tokens, -1).clone()
    shared[torch.arange(128) >= torch.arange(tokens).unsqueeze(1) * 3] = 0
    return torch.cat((window, shared), 1)


@pytest.mark.parametrize("width", [8, 40, 64])
def test_keys_that_tokens_share_give_the_bits_of_keys_of_their_own(width: int) -> None:
    tokens = 60
    q, sink, index = torch.randn(tokens, 6, width), torch.randn(6), sliding(tokens)
    keys = keys_of(int(index.max()) + 1, width)

    whole = sparse_attention(q, keys, index, sink=sink, scale=0.2)

    for t in range(tokens):
        part = slice(t, t + 1)
        alone = sparse_attention(q[part], keys, index[part], sink=sink, scale=0.2)
        assert_same_bits(alone, whole[part])
        assert_close(alone[0], formula(q[t], keys, index[t], sink, 0.2), Bounds(atol=1e-5))


def test_a_token_has_the_same_bits_in_any_company() -> None:
    keys, sink = keys_of(200, 48), torch.randn(6)

    def run(q: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return sparse_attention(q, keys, index, sink=sink, scale=0.2)

    index = torch.randint(200, (70, 128))
    index[::3, 64:] = 0
    index[:, 0] = 5
    assert_rows_independent(run, [torch.randn(70, 6, 48), index])


def test_tiles_that_name_no_key_change_nothing() -> None:
    q, keys, sink = torch.randn(3, 4, 16), keys_of(90, 16), torch.randn(4)
    index = torch.randint(1, 90, (3, 64))

    for spare in (64, 192):
        padded = torch.cat((index, torch.zeros(3, spare, dtype=torch.int64)), 1)
        got = sparse_attention(q, keys, padded, sink=sink, scale=0.2)
        assert_same_bits(got, sparse_attention(q, keys, index, sink=sink, scale=0.2))
        got = sparse_attention(q[:1], keys, padded[:1], sink=sink, scale=0.2)
        assert_same_bits(got, sparse_attention(q[:1], keys, index[:1], sink=sink, scale=0.2))


@pytest.mark.parametrize("tokens", [3, 50])
def test_poison_reaches_only_those_who_name_it(tokens: int) -> None:
    q, sink, index = torch.randn(tokens, 4, 16), torch.randn(4), sliding(tokens)
    clean = keys_of(int(index.max()) + 1, 16)
    keys = clean.clone()
    keys[int(index[-1].max())] = torch.nan

    got = sparse_attention(q, keys, index, sink=sink, scale=0.2)

    victims = (index == int(index[-1].max())).any(1)
    assert victims.any()
    assert got[victims].isnan().all()
    want = sparse_attention(q, clean, index, sink=sink, scale=0.2)
    assert_same_bits(got[~victims], want[~victims])


def test_the_sink_takes_weight_and_gives_no_value() -> None:
    q, keys = torch.zeros(1, 2, 3), torch.tensor([[0.0, 0, 0], [1, 2, 3]])
    index = torch.zeros(1, 64, dtype=torch.int64)
    index[0, 63] = 1

    got = sparse_attention(q, keys, index, sink=torch.tensor([0.0, 300.0]), scale=1.0)

    want = torch.tensor([[[0.5, 1.0, 1.5], [0.0, 0.0, 0.0]]])
    assert_close(got, want, Bounds(atol=1e-6))


def test_bfloat16_queries_give_bfloat16() -> None:
    q, keys, sink = torch.randn(3, 4, 16).bfloat16(), keys_of(90, 16), torch.randn(4)
    index = torch.randint(1, 90, (3, 64))

    got = sparse_attention(q, keys, index, sink=sink, scale=0.2)

    assert_same_bits(got, sparse_attention(q.float(), keys, index, sink=sink, scale=0.2).bfloat16())


def test_slots_that_are_no_whole_tiles_are_refused() -> None:
    with pytest.raises(ShapeError, match="multiple of 64"):
        sparse_attention(
            torch.zeros(1, 1, 4),
            torch.zeros(2, 4),
            torch.zeros(1, 60, dtype=torch.int64),
            sink=torch.zeros(1),
            scale=1.0,
        )
