"""Sampling that reads nothing back gives the tokens of sampling that does."""

import pytest
import torch

from jit_kernels.checks import ShapeError
from jit_kernels.sample import DrawParams, reference, sample, sample_unread
from jit_kernels.sample.noise import row_keys
from tests.jit_kernels.test_sample import VOCABS, _logits, _mixed_rows, _params


def _unread(params: dict[str, torch.Tensor], vocab: int, device: str = "cpu") -> DrawParams:
    drawn = params["temperature"] > 0
    filtered = (params["top_k"] < vocab) | (params["top_p"] < 1) | (params["min_p"] > 0)
    names = ("temperature", "top_k", "top_p", "min_p")
    return DrawParams(
        *(params[name].to(device) for name in names),
        draws=bool(drawn.any()),
        filters=bool((drawn & filtered).any()),
    )


@pytest.mark.parametrize("rows_at_once", [1, 5, 100])
@pytest.mark.parametrize("vocab", [*VOCABS, 5003])
def test_without_reading_back_the_same_tokens_are_drawn(
    vocab: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "UNREAD_LOGITS", rows_at_once * vocab)
    logits = _logits(24, vocab).round()  # many are equal
    mixed = _mixed_rows(24, vocab)
    for params in (mixed, _params(24, vocab), _params(24, vocab, temperature=0.0)):
        keys = row_keys(params["seed"], params["position"])

        drawn = sample_unread(logits, _unread(params, vocab), keys)

        assert torch.equal(drawn, sample(logits, **params))


def test_greedy_rows_alone_need_no_keys_and_others_do() -> None:
    logits = _logits(3, 63)

    greedy = sample_unread(logits, _unread(_params(3, 63, temperature=0.0), 63), None)

    assert torch.equal(greedy, logits.argmax(-1))
    with pytest.raises(ShapeError, match="keys"):
        sample_unread(logits, _unread(_params(3, 63), 63), None)
    with pytest.raises(ShapeError, match="temperature"):
        sample_unread(logits[:2], _unread(_params(3, 63, temperature=0.0), 63), None)


@pytest.mark.gpu
def test_on_the_gpu_the_same_tokens_are_drawn_without_reading_back() -> None:
    logits, params = _logits(24, 5003).cuda(), _mixed_rows(24, 5003)
    keys = row_keys(params["seed"], params["position"]).cuda()
    unread = _unread(params, 5003, "cuda")
    want = sample(logits, **params)

    torch.cuda.set_sync_debug_mode("error")
    try:
        drawn = sample_unread(logits, unread, keys)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    assert torch.equal(drawn, want)
