"""Rows with drafts on a real network: the tokens, and the bits, of steps without any."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from layers.models.deepseek_v4.model import ReferenceV4
from runtime.executor.launched_step import LaunchedStep
from runtime.executor.model_runner import CpuModelRunner
from runtime.wire.arrays import FLOAT32, INT32, UINT8, packed, unpacked
from runtime.wire.step import LineSampling, PromptSpan, StepResult
from tests.testing.cpu_runner import cpu_runner, tiny_network
from tests.testing.plans import PlannedRow, Plans, entry_tokens, failures, line_sampling
from tests.testing.tiny_model import CONFIG, prompt

GREEDY = line_sampling(top_logprobs=2)
DRAWN = line_sampling(temperature=1.0, seed=8, top_logprobs=2)
# Tokens of the prompts of lines 0 and 1.
LENGTHS = (30, 13)
LINES = len(LENGTHS)
# Guesses of a row in a step, at most.
DRAFTS = 7


@pytest.fixture(scope="module")
def model() -> ReferenceV4:
    """A random network with every kind of layer."""
    return tiny_network(draft_tokens=DRAFTS)


class Executor:
    """A runner, and the plans that it is sent."""

    def __init__(self, model: ReferenceV4) -> None:
        self.plans = Plans(model.cache.tree, lines=LINES)
        self.pools = model.pools(self.plans.sizes)
        self.runner: CpuModelRunner = cpu_runner(model, self.pools, lines=LINES)

    def prefill(self, *samplings: LineSampling) -> StepResult:
        """Compute the prompts; sample the token behind each."""
        rows = [PlannedRow(k, 0, prompt(LENGTHS[k], k)) for k in range(len(samplings))]
        return self.run(*rows, joins=dict(enumerate(samplings)))

    def run(self, *rows: PlannedRow, joins: dict[int, LineSampling] | None = None) -> StepResult:
        """Return what comes of a step."""
        return self.runner.launch(self.plans.plan(*rows, joins=joins)).result()


def values(result: StepResult, entry: int) -> list[list[float]]:
    """Return the log-probabilities of each token of an entry."""
    [packed_one] = [one.logprobs for one in result.logprobs if one.entry == entry]
    return unpacked(packed_one.values, FLOAT32).reshape(-1, 3).tolist()


Said = tuple[list[int], list[list[float]]]


def said_plainly(model: ReferenceV4, line: int, sampling: LineSampling, count: int) -> Said:
    """Return tokens of a line, one step each, and their log-probabilities."""
    executor = Executor(model)
    result = executor.run(PlannedRow(line, 0, prompt(LENGTHS[line], line)), joins={line: sampling})
    tokens, told = entry_tokens(result)[0], values(result, 0)
    while len(tokens) < count:
        start = LENGTHS[line] + len(tokens) - 1
        result = executor.run(PlannedRow(line, start, tokens[-1:]))
        tokens += entry_tokens(result)[0]
        told += values(result, 0)
    return tokens, told


def guesses(tokens: Sequence[int], right: int, count: int) -> list[int]:
    """Return drafts for what is sampled, the first `right` of them right."""
    return [(t + (k >= right)) % CONFIG.vocab_size for k, t in enumerate(tokens[:count])]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("count", [1, 3, DRAFTS])
def test_drafts_change_neither_tokens_nor_bits(
    model: ReferenceV4, sampling: LineSampling, count: int
) -> None:
    """Any number of them is right, step after step, beside a row that has none."""
    plain = [said_plainly(model, line, sampling, 32) for line in range(2)]
    executor = Executor(model)
    first = executor.prefill(sampling, sampling)
    tokens = entry_tokens(first)
    told = [values(first, k) for k in range(2)]
    draw = random.Random(count)
    while len(tokens[0]) < 20:
        starts = [LENGTHS[k] + len(tokens[k]) - 1 for k in range(2)]
        right, at = draw.randint(0, count), len(tokens[0])
        drafts = guesses(plain[0][0][at:], right, count)

        result = executor.run(
            PlannedRow(1, starts[1], tokens[1][-1:]),
            PlannedRow(0, starts[0], [tokens[0][-1], *drafts], drafts=count),
        )

        beside, run = entry_tokens(result)
        assert len(run) == right + 1
        for k, new in ((0, run), (1, beside)):
            tokens[k] += new
            told[k] += values(result, 1 - k)
        assert unpacked(result.finite, UINT8).all()

    for k in range(2):
        assert tokens[k] == plain[k][0][: len(tokens[k])]
        assert told[k] == plain[k][1][: len(told[k])]


def test_a_chain_of_steps_of_unknown_length_says_the_same_before_anybody_reads(
    model: ReferenceV4,
) -> None:
    plain, told = said_plainly(model, 0, DRAWN, 24)
    executor = Executor(model)
    first = executor.prefill(DRAWN, GREEDY)
    tokens = entry_tokens(first)[0]
    # Drafts of each step, and how many of them are right.
    script = [(2, 2), (1, 0), (7, 4), (6, 0), (2, 1)]
    at, bound, steps = 1, LENGTHS[0], list[LaunchedStep]()
    for k, (count, right) in enumerate(script):
        drafts = guesses(plain[at:], right, count)
        row = PlannedRow(0, bound, [0, *drafts], from_device=2 if k else 1, drafts=count)
        steps.append(executor.runner.launch(executor.plans.plan(row)))
        at += right + 1
        bound += count + 1
    last = PlannedRow(0, bound, [0], from_device=2)
    steps.append(executor.runner.launch(executor.plans.plan(last)))

    results = [step.result() for step in reversed(steps)][::-1]

    runs = [entry_tokens(result)[0] for result in results]
    assert [len(run) - 1 for run in runs] == [*(right for _, right in script), 0]
    tokens += [token for run in runs for token in run]
    assert tokens == plain[: len(tokens)]
    assert sum((values(result, 0) for result in results), values(first, 0)) == told[: len(tokens)]


def test_a_chunk_may_begin_with_a_token_that_only_the_device_has(model: ReferenceV4) -> None:
    """What follows an answer is computed with its last token, which is fed."""
    tail = prompt(9, 5)
    told: list[tuple[list[list[int]], list[list[float]]]] = []
    for from_device in (0, 1):
        executor = Executor(model)
        [[token], _] = entry_tokens(executor.prefill(GREEDY, GREEDY))
        row = PlannedRow(0, LENGTHS[0], [(1 - from_device) * token, *tail], from_device)
        result = executor.run(row)
        told.append((entry_tokens(result), values(result, 0)))

    assert told[0] == told[1]


def test_rows_that_are_not_sampled_say_whether_they_are_finite(model: ReferenceV4) -> None:
    """Of what is broken in the pools only those who read it are touched."""
    executor = Executor(model)
    rows = [PlannedRow(k, 0, prompt(LENGTHS[k], k), sampled=False) for k in range(2)]
    clean = executor.run(*rows, joins={0: GREEDY, 1: GREEDY})
    assert unpacked(clean.finite, UINT8).tolist() == [1, 1]
    window = executor.runner._lines.tables.window[0]
    executor.pools.swa[:, window.tolist()] = 0xFF

    rows = [PlannedRow(k, LENGTHS[k], [3, 4], sampled=k == 1) for k in range(2)]
    result = executor.run(*rows)

    assert unpacked(result.finite, UINT8).tolist() == [0, 1]
    assert len(entry_tokens(result)[0]) == 1
    assert failures(result) == {}


def test_a_weight_that_is_not_finite_is_told_of_every_row(model: ReferenceV4) -> None:
    weight = dict(model.named_weights())["layers.1.attn_norm.weight"]
    assert isinstance(weight, torch.Tensor)
    kept = weight.clone()
    weight[0] = torch.nan
    try:
        executor = Executor(model)
        rows = [PlannedRow(k, 0, prompt(LENGTHS[k], k), sampled=k == 1) for k in range(2)]
        result = executor.run(*rows, joins={1: GREEDY})
    finally:
        weight.copy_(kept)

    assert unpacked(result.finite, UINT8).tolist() == [0, 0]
    assert failures(result) == {0: "logits are not finite"}
    assert entry_tokens(result) == [[]]


def test_prompts_have_their_values_beside_runs(model: ReferenceV4) -> None:
    plain, told = said_plainly(model, 0, GREEDY, 6)
    text = prompt(LENGTHS[1], 1)
    executor = Executor(model)
    executor.run(PlannedRow(0, 0, prompt(LENGTHS[0], 0)), joins={0: GREEDY})
    span = PromptSpan(1, 0, packed(text[1:], INT32), top=0)
    rows = PlannedRow(0, LENGTHS[0], plain[:3], drafts=2), PlannedRow(1, 0, text, sampled=False)

    result = executor.runner.launch(executor.plans.plan(*rows, spans=[span])).result()

    assert (entry_tokens(result), values(result, 0)) == ([plain[1:4]], told[1:4])
    alone = Executor(model)
    row = PlannedRow(1, 0, text, sampled=False)
    first = alone.plans.plan(row, spans=[PromptSpan(0, 0, span.targets, top=0)])
    assert result.spans == alone.runner.launch(first).result().spans
    assert np.isfinite(unpacked(result.spans[0].values, FLOAT32)).all()
