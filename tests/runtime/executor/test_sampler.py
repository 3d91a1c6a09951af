"""The sampler: what each wish does, failing rows, log-probabilities, company."""

from typing import Any

import numpy as np
import pytest
import torch

from runtime.executor.company import Company
from runtime.executor.logprobs import top_logprobs
from runtime.executor.sampler import SampledTokens, Sampler
from runtime.executor.step_plan import SampleState
from runtime.messages import Logprobs, Sampling
from runtime.sampling import SamplingSpec

VOCAB = 129
CPU = torch.device("cpu")


def _state(
    *,
    logprobs: Logprobs | None = None,
    prompt: tuple[int, ...] = (1, 2, 3),
    stop_ids: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    **given: Any,
) -> SampleState:
    settings: dict[str, Any] = {"max_new_tokens": 99, "seed": 11, "temperature": 0.0, **given}
    tokens = np.array(prompt, dtype=np.int32)
    return SampleState(Sampling(**settings), logprobs, tokens, stop_ids, list(output))


def _logits(rows: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def _sample(logits: torch.Tensor, states: list[SampleState], *, first: int = 50) -> SampledTokens:
    positions = np.arange(first, first + len(states), dtype=np.int64)
    return Sampler(VOCAB, CPU).sample(logits, states, positions)


def _every_wish() -> list[SampleState]:
    """States that between them want everything."""
    return [
        _state(),
        _state(temperature=1.0),
        _state(temperature=0.7, top_p=0.9, seed=2**64 - 3),
        _state(temperature=1.3, top_k=9, min_p=0.05, seed=-5),
        _state(temperature=1.0, logit_bias={7: 4.0, 8: -100.0}, logprobs=Logprobs(0, 3, (7, 8))),
        _state(repetition_penalty=1.7, output=(5, 5, 90), logprobs=Logprobs(0, 0)),
        _state(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.1, output=(5, 5, 90)),
        _state(temperature=1.0, min_new_tokens=4, stop_ids=(0, 1, 2), output=(9,)),
        _state(temperature=0.9, logprobs=Logprobs(0, 3, (7, 8))),
        _state(logprobs=Logprobs(0, 20)),
    ]


def test_greedy_and_plain_rows_get_tokens_and_nothing_else() -> None:
    logits = _logits(4)

    got = _sample(logits, [_state(), _state(temperature=1.0), _state(), _state(temperature=2.0)])

    best = logits.argmax(-1).tolist()
    assert got.token_ids[0::2] == best[0::2]
    assert all(type(token) is int and 0 <= token < VOCAB for token in got.token_ids)
    assert got.failed == [None] * 4
    assert got.logprobs == [None] * 4


def test_no_rows_give_no_tokens() -> None:
    assert _sample(_logits(0), []) == SampledTokens([], [], [])


def test_a_draw_follows_seed_and_position_alone() -> None:
    logits = torch.zeros(40, VOCAB)
    states = [_state(temperature=1.0) for _ in range(40)]

    first = _sample(logits, states).token_ids

    assert _sample(logits, states).token_ids == first
    assert _sample(logits[:39], states[:39], first=51).token_ids == first[1:]
    assert _sample(logits, states, first=500).token_ids != first
    assert _sample(logits, [_state(temperature=1.0, seed=12)] * 40).token_ids != first
    assert len(set(first)) > 20


def test_seeds_of_any_size_are_taken_modulo_two_to_the_64() -> None:
    logits = torch.zeros(3, VOCAB)
    states = [_state(temperature=1.0, seed=seed) for seed in (-1, 2**64 - 1, 2**65 - 1)]

    got = Sampler(VOCAB, CPU).sample(logits, states, np.array([4, 4, 4]))

    assert len(set(got.token_ids)) == 1


def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.zeros(30, VOCAB)
    logits[:, 40] = 1e-9

    got = _sample(logits, [_state(temperature=1e-9)] * 30)

    assert got.token_ids == [40] * 30


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("only_likeliest", [{"top_p": 0.0}, {"top_p": 1e-9}, {"top_k": 1}])
def test_filters_that_keep_one_token_are_greedy_beside_rows_that_draw(
    device: str, only_likeliest: dict[str, Any]
) -> None:
    logits = _logits(40).to(device)
    logits[:, 5] = logits[:, 60] = logits.amax() + 1  # the lower id wins
    logits[20:] = _logits(20, seed=1).to(device)
    spec = SamplingSpec(temperature=2.0, **only_likeliest)
    asked = spec.resolve(3, 200, VOCAB, seed=3, index=0)
    states = [
        SampleState(asked, None, np.zeros(3, np.int32), (), []) if row % 2 else _state(top_k=1)
        for row in range(38)
    ]
    states += [_state(temperature=1.0)] * 2
    positions = np.arange(40, dtype=np.int64)

    got = Sampler(VOCAB, torch.device(device)).sample(logits, states, positions)

    assert got.token_ids[:38] == [5] * 20 + logits[20:38].argmax(-1).tolist()


def test_bias_moves_the_choice_of_its_row_only() -> None:
    logits = _logits(3)
    plain = logits.argmax(-1).tolist()
    states = [_state(), _state(logit_bias={17: 1000.0}), _state(logit_bias={plain[2]: -1000.0})]

    got = _sample(logits, states)

    assert got.token_ids[:2] == [plain[0], 17]
    assert got.token_ids[2] == logits[2].topk(2).indices[1]


def test_bias_is_added_to_the_logit() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 1.5

    assert _sample(logits, [_state(logit_bias={4: 0.4})]).token_ids == [3]
    assert _sample(logits, [_state(logit_bias={4: 0.6})]).token_ids == [4]


def test_penalties_reach_the_choice_and_follow_the_output() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 1.5
    state = _state(frequency_penalty=0.2)
    sampler = Sampler(VOCAB, CPU)

    for wanted in (3, 3, 3, 4, 3, 4):
        got = sampler.sample(logits, [state], np.array([9]))
        assert got.token_ids == [wanted]
        state.output.append(wanted)


def test_repetition_penalty_comes_before_bias() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 2.5
    state = _state(prompt=(3,), repetition_penalty=2.0, logit_bias={3: 1.6})

    # 2.0 / 2 + 1.6 = 2.6 wins; (2.0 + 1.6) / 2 = 1.8 would not.
    assert _sample(logits, [state]).token_ids == [3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_tokens_wait_for_min_new_tokens(temperature: float) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = logits[0, 6] = 60.0
    logits[0, 7] = 30.0
    state = _state(temperature=temperature, min_new_tokens=3, stop_ids=(5, 6, 4096))
    sampler = Sampler(VOCAB, CPU)

    for count in range(5):
        token = sampler.sample(logits, [state], np.array([count])).token_ids[0]
        assert (token in (5, 6)) == (count >= 3)
        state.output.append(token)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("whole_row", [False, True])
def test_a_poisoned_row_fails_alone(poison: float, whole_row: bool) -> None:
    logits = _logits(10)
    clean = _sample(logits, _every_wish())
    for bad in range(10):
        poisoned = logits.clone()
        poisoned[bad, slice(None) if whole_row else 20] = poison

        got = _sample(poisoned, _every_wish())

        assert got.failed[bad] == "logits are not finite"
        assert (got.token_ids[bad], got.logprobs[bad]) == (0, None)
        for row in set(range(10)) - {bad}:
            assert got.failed[row] is None
            assert got.token_ids[row] == clean.token_ids[row]
            assert got.logprobs[row] == clean.logprobs[row]


def test_a_step_of_nothing_but_poisoned_rows_still_answers() -> None:
    got = _sample(torch.full((10, VOCAB), torch.nan), _every_wish())

    assert got == SampledTokens([0] * 10, ["logits are not finite"] * 10, [None] * 10)


def test_a_row_with_every_token_forbidden_fails_alone() -> None:
    everything = tuple(range(VOCAB))
    states = [_state(), _state(min_new_tokens=1, stop_ids=everything), _state(temperature=1.0)]

    got = _sample(_logits(3), states)

    assert got.failed[0] is None
    assert "no token" in str(got.failed[1])
    assert got.failed[2] is None


@pytest.mark.parametrize("token", [-1, VOCAB, 2**40])
def test_a_token_outside_the_vocabulary_fails_its_row_alone(token: int) -> None:
    logits = _logits(3)
    states = [
        _state(logit_bias={token: 1.0}),
        _state(logprobs=Logprobs(0, 1, (4, token))),
        _state(),
    ]

    got = _sample(logits, states)

    assert got.failed[0] == f"logit_bias names token {token}, the vocabulary has {VOCAB}"
    assert got.failed[1] == f"logprobs names token {token}, the vocabulary has {VOCAB}"
    assert got.failed[2] is None
    assert got.token_ids == [0, 0, logits[2].argmax()]


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = _logits(1)
    wish = Logprobs(0, 4, (9, 100))
    state = _state(
        temperature=2.5,
        repetition_penalty=3.0,
        logit_bias={30: 50.0},
        output=(1, 2),
        logprobs=wish,
    )

    got = _sample(logits, [state])

    assert got.token_ids == [30]
    assert got.logprobs == [top_logprobs(logits, np.array([30]), 4, (9, 100))]


def test_only_rows_that_ask_get_log_probabilities() -> None:
    got = _sample(_logits(10), _every_wish())

    asking = [row for row, state in enumerate(_every_wish()) if state.logprobs is not None]
    assert [row for row, value in enumerate(got.logprobs) if value is not None] == asking
    for row in asking:
        found = got.logprobs[row]
        assert found is not None
        assert found.ids == [got.token_ids[row]]
        assert len(found.values) == 1


def test_a_row_gets_the_same_token_and_bits_in_any_company() -> None:
    logits = _logits(10, seed=3)
    states = _every_wish()
    positions = np.array([100, 7, 2**40, 9, 10, 11, 12, 13, 14, 15])
    together = Sampler(VOCAB, CPU).sample(logits, states, positions)

    for rows in [[row] for row in range(10)] + [list(range(9, -1, -1)), [4, 8, 2], [6, 6, 1]]:
        fresh = [_every_wish()[row] for row in rows]
        got = Sampler(VOCAB, CPU).sample(logits[rows], fresh, positions[rows])

        assert got.token_ids == [together.token_ids[row] for row in rows]
        assert got.logprobs == [together.logprobs[row] for row in rows]


def test_a_sampler_that_has_seen_other_company_answers_like_a_new_one() -> None:
    states = _every_wish()
    old = Sampler(VOCAB, CPU)
    for step, rows in enumerate([[0, 1, 2], [0, 1, 2], list(range(10)), [5, 4], [4, 5], [6, 7]]):
        logits = _logits(len(rows), seed=step)
        chosen = [states[row] for row in rows]
        positions = np.arange(len(rows)) + step

        got = old.sample(logits, chosen, positions)

        assert got == Sampler(VOCAB, CPU).sample(logits, chosen, positions)
        for state, token in zip(chosen, got.token_ids, strict=True):
            state.output.append(token)


def test_a_steady_company_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(VOCAB, CPU)
    states = _every_wish()
    sampler.sample(_logits(10), states, np.arange(10))
    monkeypatch.setattr(Company, "of", None)

    got = sampler.sample(_logits(10), list(states), np.arange(10))

    assert got == Sampler.sample(sampler, _logits(10), states, np.arange(10))


def test_the_logits_are_left_as_they_were() -> None:
    logits = _logits(10)
    before = logits.clone()

    _sample(logits, _every_wish())

    assert torch.equal(logits, before)


class Fixed:
    """A constraint that allows these tokens only."""

    begun = True

    def __init__(self, *tokens: int) -> None:
        bits = np.zeros(160, dtype=np.uint8)
        bits[list(tokens)] = 1
        self.allowed: np.ndarray | None = np.packbits(bits, bitorder="little").view("<i4")


def _constrained(*tokens: int, **given: Any) -> SampleState:
    state = _state(**given)
    state.constraint = Fixed(*tokens)
    return state


def test_a_constrained_row_gets_what_its_grammar_allows_and_no_other_row_is_touched() -> None:
    logits = _logits(3)
    kept = logits.clone()
    free = [_state(temperature=1.0), _state(temperature=1.0, seed=5)]

    got = _sample(logits, [free[0], _constrained(0, 77, 128, temperature=1.0), free[1]])

    alone = _sample(logits[[0, 2]], [_state(temperature=1.0), _state(temperature=1.0, seed=5)])
    assert got.token_ids[1] in (0, 77, 128)
    assert got.token_ids[0] == alone.token_ids[0]
    assert torch.equal(logits, kept)


def test_a_grammar_leaves_the_order_of_what_it_allows() -> None:
    logits = _logits(1)
    best = max((5, 6, 7), key=lambda token: float(logits[0, token]))

    assert _sample(logits, [_constrained(5, 6, 7)]).token_ids == [best]
    assert _sample(logits, [_constrained(5, 6, 7, logit_bias={5: 100.0})]).token_ids == [5]


def test_min_new_tokens_holds_the_end_back_only_while_something_else_is_allowed() -> None:
    wish: dict[str, Any] = {"min_new_tokens": 4, "stop_ids": (2,), "logit_bias": {2: 100.0}}

    both = _sample(_logits(1), [_constrained(2, 9, **wish)])
    only = _sample(_logits(2), [_constrained(2, **wish), _state(**wish)])

    assert both.token_ids == [9]
    assert only.token_ids[0] == 2
    assert only.token_ids[1] != 2
    assert only.failed == [None, None]


def test_the_end_that_a_grammar_is_left_is_not_anothers() -> None:
    ruled = _constrained(3, min_new_tokens=2, stop_ids=(3,))
    stuck = _state(min_new_tokens=2, stop_ids=tuple(range(VOCAB)))

    got = _sample(_logits(2), [ruled, stuck])

    assert got.token_ids[0] == 3
    assert [reason is None for reason in got.failed] == [True, False]


def test_a_grammar_that_allows_nothing_fails_its_row_alone() -> None:
    got = _sample(_logits(2), [_constrained(), _state()])

    assert got.failed[0] is not None
    assert got.failed[1] is None


def test_without_a_grammar_no_mask_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a mask was applied")

    monkeypatch.setattr("runtime.executor.sampler.mask_logits", never)

    got = _sample(_logits(10), _every_wish())

    assert got.failed == [None] * 10


def test_log_probabilities_are_the_models_whatever_the_grammar() -> None:
    logits = _logits(1)

    got = _sample(logits, [_constrained(9, logprobs=Logprobs(0, 0))])

    [reported] = got.logprobs
    assert reported is not None
    assert reported.values == top_logprobs(logits, np.array([9]), 0, ()).values
