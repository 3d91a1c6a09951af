"""What is read of requests that are sampled together; what it does to tokens: test_sampler.py."""

from typing import Any

import numpy as np
import pytest
import torch

from runtime.executor.company import Company
from runtime.executor.step_plan import SampleState
from runtime.messages import Logprobs, Sampling

VOCAB = 50
CPU = torch.device("cpu")


def state(
    *, stop_ids: tuple[int, ...] = (), logprobs: Logprobs | None = None, **given: Any
) -> SampleState:
    settings: dict[str, Any] = {"max_new_tokens": 9, "seed": 1, "temperature": 0.0, **given}
    return SampleState(Sampling(**settings), logprobs, np.zeros(1, dtype=np.int32), stop_ids)


def company(*samples: SampleState) -> Company:
    return Company.of(list(samples), vocab_size=VOCAB, device=CPU)


def test_rows_are_listed_by_what_they_want() -> None:
    got = company(
        state(),
        state(presence_penalty=0.5),
        state(min_new_tokens=2, stop_ids=(3, VOCAB, -1)),
        state(logprobs=Logprobs(0, 2, (7,))),
        state(logit_bias={4: 1.5}),
        state(logprobs=Logprobs(9, 2, (7,))),
    )

    assert got.penalised == [1]
    assert got.held_back == [(2, [3])]
    assert got.reporting == {(2, (7,)): [3, 5]}
    assert got.bias is not None
    assert [part.tolist() for part in got.bias] == [[4], [4], [1.5]]
    assert (got.constrained, got.refused) == ([], {})


def test_a_refused_row_wants_nothing_else() -> None:
    got = company(state(logit_bias={VOCAB: 1.0}, presence_penalty=1.0))

    assert got.refused == {0: "logit_bias names token 50, the vocabulary has 50"}
    assert (got.bias, got.penalised) == (None, [])


def test_stop_tokens_are_forbidden_until_there_are_enough() -> None:
    waiting = state(min_new_tokens=2, stop_ids=(3, 5))
    got = company(state(), waiting)

    assert got.forbidden() == [(1, 3), (1, 5)]
    waiting.output += [8, 9]
    assert got.forbidden() == []


def test_what_filters_nothing_and_what_is_too_cold_to_draw_is_read_as_such() -> None:
    kept = company(*(state(top_k=top_k) for top_k in (-1, 0, 1, 2, VOCAB - 1, VOCAB, VOCAB + 1)))
    warmth = company(*(state(temperature=value) for value in (0.0, 0.9e-6, 1e-6, 0.005, 1.0)))

    assert kept.params["top_k"].tolist() == [VOCAB, VOCAB, 1, 2, VOCAB - 1, VOCAB, VOCAB]
    expected = torch.tensor([0.0, 0.0, 1e-6, 0.005, 1.0])
    assert torch.equal(warmth.params["temperature"], expected)


@pytest.mark.parametrize(
    ("samples", "draws", "filters"),
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
    samples: list[SampleState], draws: bool, filters: bool
) -> None:
    got = company(*samples)

    params = got.unread()

    assert (params.draws, params.filters) == (draws, filters)
    assert params is got.unread()
    assert params.temperature.tolist() == [s.sampling.temperature for s in samples]


def test_a_company_is_known_by_its_members_in_their_order() -> None:
    one, two = state(), state()
    got = company(one, two)

    assert got.is_of([one, two])
    assert not got.is_of([two, one])
    assert not got.is_of([one])
    assert not got.is_of([one, state()])
