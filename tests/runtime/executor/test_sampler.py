"""The sampler: what each wish does, failing rows, log-probabilities, company."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from runtime.executor.logprobs import top_logprobs
from runtime.executor.sampler import DrawnTokens, Sampler
from runtime.executor.sampling_rows import SamplingRows
from runtime.sampling import SamplingSpec
from runtime.wire.arrays import INT32, packed, unpacked
from runtime.wire.step import Join, LineSampling, PackedLogprobs
from tests.testing.plans import line_sampling, mask

VOCAB = 129
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Wish:
    """How a line is sampled, and what its grammar allows; None: it follows none."""

    sampling: LineSampling
    allowed: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Told:
    """What was sampled, in a form that compares: by row."""

    tokens: list[int]
    failures: dict[int, str]
    logprobs: dict[int, PackedLogprobs]


def wish(**given: Any) -> Wish:
    return Wish(line_sampling(**given))


def constrained(*tokens: int, **given: Any) -> Wish:
    """Return a wish for these tokens only."""
    return Wish(line_sampling(constrained=True, **given), tokens)


def random_logits(rows: int, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def let_join(
    sampler: Sampler, wishes: Sequence[Wish], positions: Sequence[int], *, first_line: int = 0
) -> np.ndarray:
    """Let lines join from `first_line` on; the next token of each has its position. Return them."""
    lines = np.arange(first_line, first_line + len(wishes), dtype=np.int32)
    joins: list[Join] = []
    for line, one, position in zip(lines.tolist(), wishes, positions, strict=True):
        said = len(unpacked(one.sampling.output, INT32))
        begun = msgspec.structs.replace(one.sampling, prompt_tokens=position - said)
        joins.append(Join(line, begun))
    sampler.update([], joins)
    pairs = zip(lines.tolist(), wishes, strict=True)
    sampler.mask([mask(line, w.allowed, VOCAB) for line, w in pairs if w.allowed is not None])
    return lines


def read(drawn: DrawnTokens) -> Told:
    told = drawn.read()
    return Told(
        told.tokens.tolist(), told.failures, {one.entry: one.logprobs for one in told.logprobs}
    )


def sampled(
    logits: torch.Tensor,
    wishes: Sequence[Wish],
    *,
    first: int = 50,
    positions: Sequence[int] | None = None,
) -> Told:
    """Return what a new sampler says; positions count from `first` on unless given."""
    at = range(first, first + len(wishes)) if positions is None else positions
    sampler = Sampler(VOCAB, logits.device)
    lines = let_join(sampler, wishes, at)
    return read(sampler.draw(logits, lines, np.array(at, dtype=np.int64)))


def every_wish() -> list[Wish]:
    """Wishes that between them want everything."""
    return [
        wish(),
        wish(temperature=1.0),
        wish(temperature=0.7, top_p=0.9, seed=2**64 - 3),
        wish(temperature=1.3, top_k=9, min_p=0.05, seed=2**64 - 5),
        wish(temperature=1.0, bias={7: 4.0, 8: -100.0}, top_logprobs=3, logprob_ids=(7, 8)),
        wish(repetition_penalty=1.7, output=(5, 5, 90), top_logprobs=0),
        wish(temperature=1.0, frequency_penalty=0.5, presence_penalty=0.1, output=(5, 5, 90)),
        wish(temperature=1.0, min_new_tokens=4, stop_ids=(0, 1, 2), output=(9,)),
        wish(temperature=0.9, top_logprobs=3, logprob_ids=(7, 8)),
        wish(top_logprobs=20),
    ]


def test_greedy_and_plain_rows_get_tokens_and_nothing_else() -> None:
    logits = random_logits(4)

    got = sampled(logits, [wish(), wish(temperature=1.0), wish(), wish(temperature=2.0)])

    best = logits.argmax(-1).tolist()
    assert got.tokens[0::2] == best[0::2]
    assert all(type(token) is int and 0 <= token < VOCAB for token in got.tokens)
    assert (got.failures, got.logprobs) == ({}, {})


def test_no_rows_give_no_tokens() -> None:
    assert sampled(random_logits(0), []) == Told([], {}, {})


def test_a_draw_follows_seed_and_position_alone() -> None:
    logits = torch.zeros(40, VOCAB)
    wishes = [wish(temperature=1.0) for _ in range(40)]

    first = sampled(logits, wishes).tokens

    assert sampled(logits, wishes).tokens == first
    assert sampled(logits[:39], wishes[:39], first=51).tokens == first[1:]
    assert sampled(logits, wishes, first=500).tokens != first
    assert sampled(logits, [wish(temperature=1.0, seed=12)] * 40).tokens != first
    assert len(set(first)) > 20


def test_a_tiny_temperature_is_greedy() -> None:
    logits = torch.zeros(30, VOCAB)
    logits[:, 40] = 1e-9

    got = sampled(logits, [wish(temperature=1e-9)] * 30)

    assert got.tokens == [40] * 30


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("only_likeliest", [{"top_p": 0.0}, {"top_p": 1e-9}, {"top_k": 1}])
def test_filters_that_keep_one_token_are_greedy_beside_rows_that_draw(
    device: str, only_likeliest: dict[str, Any]
) -> None:
    logits = random_logits(40).to(device)
    logits[:, 5] = logits[:, 60] = logits.amax() + 1  # the lower id wins
    logits[20:] = random_logits(20, seed=1).to(device)
    asked = SamplingSpec(temperature=2.0, **only_likeliest).resolve(3, 200, VOCAB, seed=3, index=0)
    names = ("temperature", "top_k", "top_p", "min_p", "seed")
    alone = wish(**{name: getattr(asked, name) for name in names})
    wishes = [alone if row % 2 else wish(top_k=1) for row in range(38)]

    got = sampled(logits, [*wishes, *[wish(temperature=1.0)] * 2])

    assert got.tokens[:38] == [5] * 20 + logits[20:38].argmax(-1).tolist()


def test_bias_moves_the_choice_of_its_row_only() -> None:
    logits = random_logits(3)
    plain = logits.argmax(-1).tolist()
    wishes = [wish(), wish(bias={17: 1000.0}), wish(bias={plain[2]: -1000.0})]

    got = sampled(logits, wishes)

    assert got.tokens[:2] == [plain[0], 17]
    assert got.tokens[2] == logits[2].topk(2).indices[1]


def test_bias_is_added_to_the_logit() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 1.5

    assert sampled(logits, [wish(bias={4: 0.4})]).tokens == [3]
    assert sampled(logits, [wish(bias={4: 0.6})]).tokens == [4]


def test_penalties_reach_the_choice_and_count_what_is_sampled_without_the_host() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 1.5
    sampler = Sampler(VOCAB, CPU)
    lines = let_join(sampler, [wish(frequency_penalty=0.2)], [9])

    drawn = [sampler.draw(logits, lines, np.array([9 + k])) for k in range(6)]

    assert [one.read().tokens.tolist() for one in drawn] == [[3], [3], [3], [4], [3], [4]]


def test_repetition_penalty_comes_before_bias() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3], logits[0, 4] = 2.0, 2.5

    # 2.0 / 2 + 1.6 = 2.6 wins; (2.0 + 1.6) / 2 = 1.8 would not.
    one = wish(prompt=(3,), repetition_penalty=2.0, bias={3: 1.6})
    assert sampled(logits, [one]).tokens == [3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_stop_tokens_wait_for_min_new_tokens(temperature: float) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 5] = logits[0, 6] = 60.0
    logits[0, 7] = 30.0
    sampler = Sampler(VOCAB, CPU)
    late = wish(temperature=temperature, min_new_tokens=3, stop_ids=(5, 6, 4096))
    lines = let_join(sampler, [late], [20])

    for count in range(5):
        [token] = read(sampler.draw(logits, lines, np.array([20 + count]))).tokens
        assert (token in (5, 6)) == (count >= 3)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("whole_row", [False, True])
def test_a_poisoned_row_fails_alone(poison: float, whole_row: bool) -> None:
    logits = random_logits(10)
    clean = sampled(logits, every_wish())
    for bad in range(10):
        poisoned = logits.clone()
        poisoned[bad, slice(None) if whole_row else 20] = poison

        got = sampled(poisoned, every_wish())

        assert got.failures == {bad: "logits are not finite"}
        assert got.tokens[bad] == 0
        assert got.logprobs == {row: v for row, v in clean.logprobs.items() if row != bad}
        for row in set(range(10)) - {bad}:
            assert got.tokens[row] == clean.tokens[row]


def test_a_step_of_nothing_but_poisoned_rows_still_answers() -> None:
    got = sampled(torch.full((10, VOCAB), torch.nan), every_wish())

    assert got == Told([0] * 10, dict.fromkeys(range(10), "logits are not finite"), {})


def test_a_row_with_every_token_forbidden_fails_alone() -> None:
    nothing = wish(min_new_tokens=1, stop_ids=tuple(range(VOCAB)))

    got = sampled(random_logits(3), [wish(), nothing, wish(temperature=1.0)])

    assert list(got.failures) == [1]
    assert "no token" in got.failures[1]


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31 - 1])
def test_a_token_outside_the_vocabulary_fails_its_row_alone(token: int) -> None:
    logits = random_logits(3)
    asks = wish(top_logprobs=1, logprob_ids=(4, token))

    got = sampled(logits, [wish(bias={token: 1.0}), asks, wish()])

    assert got.failures == {
        0: f"logit_bias names token {token}, the vocabulary has {VOCAB}",
        1: f"logprobs names token {token}, the vocabulary has {VOCAB}",
    }
    assert got.tokens == [0, 0, logits[2].argmax()]


def test_log_probabilities_are_of_the_raw_logits() -> None:
    logits = random_logits(1)
    one = wish(
        temperature=2.5,
        repetition_penalty=3.0,
        bias={30: 50.0},
        output=(1, 2),
        top_logprobs=4,
        logprob_ids=(9, 100),
    )

    got = sampled(logits, [one])

    assert got.tokens == [30]
    assert got.logprobs == {0: top_logprobs(logits, np.array([30]), 4, (9, 100))}


def test_only_rows_that_ask_get_log_probabilities() -> None:
    got = sampled(random_logits(10), every_wish())

    asking = [row for row, one in enumerate(every_wish()) if one.sampling.top_logprobs >= 0]
    assert sorted(got.logprobs) == asking
    for row in asking:
        assert unpacked(got.logprobs[row].ids, INT32).tolist() == [got.tokens[row]]


def test_a_row_gets_the_same_token_and_bits_in_any_company() -> None:
    logits = random_logits(10, seed=3)
    wishes = every_wish()
    positions = [100, 7, 2**40, 9, 10, 11, 12, 13, 14, 15]
    together = sampled(logits, wishes, positions=positions)

    for rows in [[row] for row in range(10)] + [list(range(9, -1, -1)), [4, 8, 2], [6, 1]]:
        at = [positions[row] for row in rows]
        got = sampled(logits[rows], [wishes[row] for row in rows], positions=at)

        assert got.tokens == [together.tokens[row] for row in rows]
        assert got.logprobs == {
            k: together.logprobs[row] for k, row in enumerate(rows) if row in together.logprobs
        }


def test_rows_of_one_line_get_what_each_gets_alone() -> None:
    logits = random_logits(4)
    one = wish(temperature=1.0, seed=3, bias={4: 1.0}, top_logprobs=2)
    sampler = Sampler(VOCAB, CPU)
    lines = let_join(sampler, [one, wish()], [20, 30])

    got = read(sampler.draw(logits, lines[[0, 0, 1, 0]], np.array([20, 21, 30, 22])))

    assert list(got.logprobs) == [0, 1, 3]
    for row, position in ((0, 20), (1, 21), (3, 22)):
        alone = sampled(logits[row : row + 1], [one], first=position)
        assert (got.tokens[row], got.logprobs[row]) == (alone.tokens[0], alone.logprobs[0])


def saying_so_far(one: Wish, said: Sequence[int]) -> Wish:
    """Return a wish as it is told to an executor that did not sample what was said."""
    output = [*unpacked(one.sampling.output, INT32).tolist(), *said]
    told = msgspec.structs.replace(one.sampling, output=packed(output, INT32))
    return dataclasses.replace(one, sampling=told)


def test_a_sampler_that_has_seen_other_company_answers_like_a_new_one() -> None:
    wishes, said = every_wish(), [list[int]() for _ in range(10)]
    old = Sampler(VOCAB, CPU)
    lines = let_join(old, wishes, [50] * 10)
    for step, rows in enumerate([[0, 1, 2], [0, 1, 2], list(range(10)), [5, 4], [4, 5], [6, 7]]):
        logits = random_logits(len(rows), seed=step)
        at = [50 + len(said[row]) for row in rows]

        got = read(old.draw(logits, lines[rows], np.array(at)))

        fresh = [saying_so_far(wishes[row], said[row]) for row in rows]
        assert got == sampled(logits, fresh, positions=at)
        for row, token in zip(rows, got.tokens, strict=True):
            said[row].append(token)


def test_a_steady_company_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler, logits, at = Sampler(VOCAB, CPU), random_logits(10), np.full(10, 20)
    lines = let_join(sampler, every_wish(), at.tolist())
    first = read(sampler.draw(logits, lines, at))
    monkeypatch.setattr(SamplingRows, "of", None)

    got = read(sampler.draw(logits, lines.copy(), at))

    # Penalties make rows 5 and 6 say something else after what they said.
    assert [*got.tokens[:5], *got.tokens[7:]] == [*first.tokens[:5], *first.tokens[7:]]


def test_the_logits_are_left_as_they_were() -> None:
    logits = random_logits(10)
    before = logits.clone()

    sampled(logits, every_wish())

    assert torch.equal(logits, before)
