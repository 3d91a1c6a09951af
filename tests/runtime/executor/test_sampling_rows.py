"""What is read of lines that are sampled together; what it does to tokens: test_sampler.py."""

from typing import Any

import numpy as np
import pytest
import torch

from runtime.executor.sampling_rows import SamplingRows, refusal
from runtime.wire.step import LineSampling
from tests.testing.plans import line_sampling, mask_words

VOCAB = 50
CPU = torch.device("cpu")


def state(**given: Any) -> LineSampling:
    return line_sampling(prompt=(0,), **given)


def rows_of(*states: LineSampling) -> SamplingRows:
    lines = np.arange(len(states), dtype=np.int32)
    return SamplingRows.of(lines, states, vocab_size=VOCAB, device=CPU)


def test_rows_are_listed_by_what_they_want() -> None:
    got = rows_of(
        state(),
        state(presence_penalty=0.5),
        state(min_new_tokens=2, stop_ids=(3, VOCAB, -1)),
        state(top_logprobs=2, logprob_ids=(7,)),
        state(bias={4: 1.5}),
        state(top_logprobs=2, logprob_ids=(7,)),
        state(constrained=True),
    )

    assert got.penalised == [1]
    assert got.held_back == {2: [3]}
    assert got.reporting == {(2, (7,)): [3, 5]}
    assert got.bias is not None
    assert [part.tolist() for part in got.bias] == [[4], [4], [1.5]]
    assert (got.constrained, got.refused) == ([6], {})


def test_a_refused_row_wants_nothing_else() -> None:
    got = rows_of(state(bias={VOCAB: 1.0}, presence_penalty=1.0))

    assert got.refused == {0: "logit_bias names token 50, the vocabulary has 50"}
    assert (got.bias, got.penalised) == (None, [])
    assert refusal(state(bias={0: 1.0}, logprob_ids=(VOCAB - 1,)), VOCAB) is None


def test_stop_tokens_are_forbidden_until_there_are_enough() -> None:
    """The token at position p is output p - 5 of a prompt of five."""
    got = rows_of(state(), state(prompt_tokens=5, min_new_tokens=2, stop_ids=(3, 5)))

    assert got.forbidden(np.array([5, 5])) == [(1, 3), (1, 5)]
    assert got.forbidden(np.array([5, 6])) == [(1, 3), (1, 5)]
    assert got.forbidden(np.array([5, 7])) == []


def test_what_filters_nothing_and_what_is_too_cold_to_draw_is_read_as_such() -> None:
    kept = rows_of(*(state(top_k=top_k) for top_k in (-1, 0, 1, 2, VOCAB - 1, VOCAB, VOCAB + 1)))
    warmth = rows_of(*(state(temperature=value) for value in (0.0, 0.9e-6, 1e-6, 0.005, 1.0)))

    assert kept.params["top_k"].tolist() == [VOCAB, VOCAB, 1, 2, VOCAB - 1, VOCAB, VOCAB]
    expected = torch.tensor([0.0, 0.0, 1e-6, 0.005, 1.0])
    assert torch.equal(warmth.params["temperature"], expected)


def test_every_seed_of_64_bits_is_told_from_the_others() -> None:
    seeds = (0, 1, 2**63 - 1, 2**63, 2**64 - 1)

    got = rows_of(*(state(seed=seed) for seed in seeds)).params["seed"]

    assert got.numpy().view(np.uint64).tolist() == list(seeds)


@pytest.mark.parametrize(
    ("states", "draws", "filters"),
    [
        ([state(), state(top_p=0.5)], False, False),
        ([state(), state(temperature=1.0)], True, False),
        ([state(top_k=3), state(temperature=1.0)], True, False),
        ([state(), state(temperature=1.0, top_k=3)], True, True),
        ([state(temperature=1.0, min_p=0.1)], True, True),
        ([state(temperature=1.0, top_p=0.9)], True, True),
        ([state(temperature=1.0, top_k=VOCAB)], True, False),
    ],
)
def test_parameters_on_the_device_say_what_work_there_is(
    states: list[LineSampling], draws: bool, filters: bool
) -> None:
    got = rows_of(*states)

    params = got.unread()

    assert (params.draws, params.filters, got.draws) == (draws, filters, draws)
    assert params is got.unread()
    assert params.temperature.tolist() == [s.temperature for s in states]


def test_rows_are_known_by_their_lines_in_their_order() -> None:
    got = rows_of(state(), state())

    assert got.is_of(np.array([0, 1]))
    assert not got.is_of(np.array([1, 0]))
    assert not got.is_of(np.array([0]))
    assert not got.is_of(np.array([0, 2]))
    assert got.lines_there.tolist() == [0, 1]
    assert got.lines_there is got.lines_there


def test_constrained_rows_are_held_to_the_masks_of_their_lines() -> None:
    lines = np.array([8, 3, 8], dtype=np.int32)
    ruled, free = state(constrained=True), state()
    got = SamplingRows.of(lines, [ruled, free, ruled], vocab_size=VOCAB, device=CPU)
    words = mask_words((1, 2), VOCAB)

    with pytest.raises(ValueError, match=r"lines \[8, 8\] are sampled without a mask"):
        got.masks({3: words})
    told = got.masks({8: words})

    assert told is not None
    assert told[0].tolist() == [0, 2]
    assert [row.tolist()[0] & 0xFF for row in told[1]] == [6, 6]
    assert rows_of(free).masks({}) is None
