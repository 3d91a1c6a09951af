"""Random requests, stops, aborts, grammars and retractions: the same answers with overlap."""

import random
from dataclasses import dataclass

import numpy as np
import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from runtime.messages import FinishType, Grammar, Logprobs
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output, ruled_output

VOCAB = 50
MASK = np.array([0x5A5A5A5A, 0x3C3C3C3C], dtype=np.int32)


@dataclass(frozen=True)
class Ask:
    """A request of a random script.

    turn    when it is sent
    leaves  turns until it is aborted, if it is
    """

    turn: int
    prompt: list[int]
    new: int
    stop: tuple[int, ...]
    min_new: int
    values: bool
    grammar: Grammar | None
    priority: int
    leaves: int | None


def rule(draw: random.Random, said: list[int]) -> Grammar | None:
    """Return a grammar now and then, half of them for what comes behind a token of the answer."""
    if draw.random() > 0.25:
        return None
    if not said or draw.random() < 0.5:
        return Grammar("regex", "a")
    return Grammar("regex", "a", after=draw.choice(said), may_end=True)


def answer(ask: Ask, count: int) -> list[int]:
    """Return the first tokens of the right answer."""
    if ask.grammar is None:
        return expected_output(ask.prompt, count, VOCAB)
    return ruled_output(ask.prompt, count, VOCAB, after=ask.grammar.after, mask=MASK)


def script(draw: random.Random, context: int) -> list[Ask]:
    """Return requests that share prefixes, answers of one another included."""
    texts = [draw.choices(range(VOCAB), k=draw.randint(3, 30)) for _ in range(3)]
    asks: list[Ask] = []
    for _ in range(30):
        base = draw.choice(texts)
        prompt = [*base[: draw.randint(1, len(base))], *draw.choices(range(VOCAB), k=2)]
        if draw.random() < 0.5:
            prompt = [*base, *draw.choices(range(VOCAB), k=draw.randint(0, 6))]
        new = draw.randint(0, 25)
        if len(prompt) + new > context:
            continue
        said = expected_output(prompt, new, VOCAB)
        stop = (draw.choice(said),) if said and draw.random() < 0.5 else ()
        texts.append([*prompt, *said[: draw.randint(0, new)]])
        asks.append(
            Ask(
                draw.randint(0, 120),
                prompt,
                new,
                stop,
                min_new=draw.choice([0, 0, 0, 4]) if new >= 4 else 0,
                values=draw.random() < 0.1,
                grammar=rule(draw, said),
                priority=draw.choice([0, 0, 1]),
                leaves=draw.randint(0, 20) if draw.random() < 0.2 else None,
            )
        )
    return sorted(asks, key=lambda ask: ask.turn)


def play(rig: Rig, grammars: FakeGrammars, asks: list[Ask], seed: int) -> list[int]:
    """Play a script to its end; return the ids of its requests."""
    draw = random.Random(seed)
    ids: list[int] = []
    leaving: dict[int, int] = {}
    for turn in range(6000):
        while len(ids) < len(asks) and asks[len(ids)].turn <= turn:
            ask = asks[len(ids)]
            values = Logprobs(draw.randrange(len(ask.prompt) + 1)) if ask.values else None
            request = rig.send(
                ask.prompt,
                ask.new,
                stop=ask.stop,
                min_new=ask.min_new,
                logprobs=values,
                grammar=ask.grammar,
                priority=ask.priority,
            )
            ids.append(request)
            if ask.leaves is not None:
                leaving[request] = turn + ask.leaves
        for request in [r for r, until in leaving.items() if until <= turn]:
            rig.abort(request)
            del leaving[request]
        if grammars.outputs and draw.random() < 0.7:
            grammars.answer(*draw.sample(sorted(grammars.outputs), 1))
        rig.scheduler.turn()
        if len(ids) == len(asks) and not rig.busy:
            return ids
    raise AssertionError("the script does not come to an end")


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 60)]


@pytest.mark.parametrize("seed", [*range(5), *SLOW])
def test_random_scripts_get_the_same_answers_as_without_overlap(seed: int) -> None:
    draw = random.Random(seed)
    spec = draw.choice([TreeSpec(8, 4, 8), TreeSpec(4, 4, 8), TreeSpec(16, 4, 10)])
    rows = draw.randint(1, 5)
    pages = draw.randint(80, 240) // spec.page_size + 4
    sizes = PoolSizes(
        pages, draw.randint(1, 3) * spec.row_swa_pages + draw.randint(0, 9), draw.randint(2, 9)
    )
    chunk, replay = draw.choice([1, 5, 16, -1]), draw.choice([None, None, 2 * spec.window])
    asks = script(draw, pages * spec.page_size)
    told: list[list[tuple[list[int], FinishType | None, int | None]]] = []
    overlapped = 0
    for overlap in (False, True):
        grammars = FakeGrammars(VOCAB)
        grammars.allowed = MASK
        rig = Rig(
            sizes,
            spec=spec,
            rows=rows,
            chunk=chunk,
            replay=replay,
            grammars=grammars,
            overlap=overlap,
        )
        ids = play(rig, grammars, asks, seed)
        told.append([])
        for request, ask in zip(ids, asks, strict=True):
            tokens = rig.tokens(request)
            assert tokens == answer(ask, len(tokens))
            news = rig.outputs(request)
            if ask.leaves is None:
                told[-1].append((tokens, news[-1].finish, news[-1].matched_stop))
        assert not rig.refusals()
        overlapped = rig.runner.overlapped
        rig.assert_conserved()

    assert told[0] == told[1]
    assert overlapped > 20
