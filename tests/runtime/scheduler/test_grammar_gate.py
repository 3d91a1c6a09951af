"""Requests with grammars in the scheduler: when they wait, when they run, and how they end.

The masks come from a stand-in that the tests control, the last tests use real ones.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mem_cache.spec import PoolSizes
from runtime.executor.interface import StepHandle
from runtime.grammar.nursery import NurserySettings
from runtime.grammar.output import GrammarOutput
from runtime.grammar.pool import GrammarPool, PoolSettings
from runtime.messages import Grammar, Output
from runtime.scheduler.grammar_gate import IDLE_S
from runtime.scheduler.request import Request
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.scheduler_rig import SMALL, Rig
from tests.testing.stand_in.tokenizer import EOS_ID, VOCAB_SIZE, train_tokenizer
from tests.testing.token_runner import SampledRow, TokenRunner, expected_output, next_token

pytestmark = pytest.mark.usefixtures("either_way")

SIZES = PoolSizes(full_pages=60, swa_pages=80, states=30)
VOCAB = 50
EOS = 49
A = Grammar("regex", "a", field="regex")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


class NeverAsked(FakeGrammars):
    """Grammars that nobody may ask for anything."""

    def open(self, request_id: int, grammar: Grammar) -> GrammarOutput:
        raise AssertionError("opened")

    def close(self, output: GrammarOutput) -> None:
        raise AssertionError("closed")

    def poll(self, timeout_s: float = 0.0) -> list[GrammarOutput]:
        raise AssertionError("polled")


@pytest.fixture
def grammars() -> FakeGrammars:
    return FakeGrammars(VOCAB, frozenset({EOS}))


@pytest.fixture
def rig(grammars: FakeGrammars) -> Rig:
    return Rig(SIZES, grammars=grammars, eos=(EOS,), vocab=VOCAB)


def test_without_a_grammar_none_of_this_runs() -> None:
    rig = Rig(SIZES, grammars=NeverAsked(VOCAB), vocab=VOCAB)
    request_id = rig.send(PROMPT, new=5)
    rig.send([1, 2, 3])

    rig.run()

    assert rig.tokens(request_id) == expected_output(PROMPT, 5, VOCAB)


def test_masks_are_not_waited_for_while_a_prompt_is_computed(
    rig: Rig, grammars: FakeGrammars
) -> None:
    rig.send(PROMPT, new=3, grammar=A)
    prompt = rig.send(list(range(48)), new=1)
    rig.turn_until(lambda: bool(rig.outputs(prompt)))
    assert set(grammars.waits) == {0.0}

    rig.scheduler.turn()
    assert grammars.waits[-1] == IDLE_S


def test_a_request_waits_in_the_queue_until_its_grammar_is_compiled(
    rig: Rig, grammars: FakeGrammars
) -> None:
    waiting = rig.send(PROMPT, new=3, grammar=A)
    free = rig.send([7, 7, 7], new=3)

    rig.turn_until(lambda: bool(rig.outputs(free)) and rig.outputs(free)[-1].finish is not None)
    assert rig.outputs(waiting) == []
    assert len(rig.replica.sets.waiting) == 1
    assert rig.residency.rows_used == 0

    grammars.instant = True
    rig.run()
    assert rig.tokens(waiting) == expected_output(PROMPT, 3, VOCAB)
    assert grammars.accepted[waiting] == rig.tokens(waiting)[:2]
    assert grammars.outputs == {}


def test_a_mask_that_comes_while_a_step_is_gathered_lets_its_request_in(
    rig: Rig, grammars: FakeGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = rig.send([7, 7, 7], new=300, grammar=A)
    grammars.instant = True
    rig.turn_until(lambda: len(rig.tokens(running)) >= 5)
    grammars.instant = False
    waiting = rig.send(PROMPT, new=3, grammar=A)
    for _ in range(3):
        grammars.answer(running)
        rig.scheduler.turn()
    gather = rig.replica.gate.gather

    def with_all_masks(requests: Sequence[Request], step: StepHandle) -> None:
        grammars.answer()
        grammars.poll()
        gather(requests, step)

    monkeypatch.setattr(rig.replica.gate, "gather", with_all_masks)

    for _ in range(6):
        grammars.answer(running)
        rig.scheduler.turn()

    assert rig.tokens(waiting)
    assert len(rig.tokens(running)) < 30


def test_the_end_of_the_grammar_ends_the_request_whatever_else_was_asked(
    rig: Rig, grammars: FakeGrammars
) -> None:
    grammars.instant = True
    tokens = expected_output(PROMPT, 6, VOCAB)
    grammars.end_ids = frozenset({tokens[3]})
    assert tokens[3] not in tokens[:3]

    request_id = rig.send(PROMPT, new=6, grammar=A, min_new=6, ignore_eos=True)
    rig.run()

    assert rig.tokens(request_id) == tokens[:4]
    last = rig.outputs(request_id)[-1]
    assert (last.finish, last.matched_stop) == ("stop", tokens[3])


def test_before_its_grammar_begins_an_output_ends_as_any_other_does(
    rig: Rig, grammars: FakeGrammars
) -> None:
    grammars.instant = True
    tokens = expected_output(PROMPT, 6, VOCAB)
    grammars.end_ids = frozenset({tokens[3], tokens[5]})
    later = msgspec.structs.replace(A, after=tokens[4], may_end=True)

    ending = rig.send(PROMPT, new=6, grammar=later, stop=(tokens[3],))
    going_on = rig.send(PROMPT, new=6, grammar=later, ignore_eos=True)
    rig.run()

    assert rig.tokens(ending) == tokens[:4]
    assert rig.tokens(going_on) == tokens
    assert grammars.accepted[going_on] == []
    assert rig.outputs(going_on)[-1].finish == "stop"


def test_an_output_cut_off_says_length(rig: Rig, grammars: FakeGrammars) -> None:
    grammars.instant = True
    request_id = rig.send(PROMPT, new=2, grammar=A)

    rig.run()

    assert rig.outputs(request_id)[-1].finish == "length"


def test_a_grammar_that_fails_before_anything_is_said_is_refused(
    rig: Rig, grammars: FakeGrammars
) -> None:
    bad, fine = rig.send(PROMPT, grammar=A), rig.send([7, 7, 7], new=3)
    rig.scheduler.turn()

    grammars.fail(bad, "it is wrong")
    rig.run()

    [refusal] = rig.refusals()
    assert (refusal.request_id, refusal.reason, refusal.message) == (bad, "grammar", "it is wrong")
    assert refusal.param == "regex"
    assert rig.outputs(bad) == []
    assert rig.tokens(fine) == expected_output([7, 7, 7], 3, VOCAB)
    assert grammars.outputs == {}
    rig.assert_conserved()


def test_a_grammar_that_fails_later_ends_its_request_with_an_error(
    rig: Rig, grammars: FakeGrammars
) -> None:
    bad, fine = rig.send(PROMPT, new=9, grammar=A), rig.send([7, 7, 7], new=9)
    rig.scheduler.turn()
    grammars.answer()
    rig.turn_until(lambda: len(rig.tokens(bad)) == 1)

    grammars.fail(bad, "it is slow")
    rig.run()

    last = rig.outputs(bad)[-1]
    assert (last.finish, last.error) == ("error", "it is slow")
    assert rig.tokens(fine) == expected_output([7, 7, 7], 9, VOCAB)
    rig.assert_conserved()


def test_an_abort_closes_the_grammar_wherever_the_request_stands(
    rig: Rig, grammars: FakeGrammars
) -> None:
    waiting, running = rig.send(PROMPT, grammar=A), rig.send([7, 7, 7], new=30, grammar=A)
    rig.scheduler.turn()
    grammars.answer(running)
    rig.turn_until(lambda: len(rig.tokens(running)) == 1)

    rig.abort(waiting, running)
    rig.run()

    assert grammars.outputs == {}
    rig.assert_conserved()


def test_choices_of_one_prompt_share_its_logits_only_once_their_masks_are_there(
    rig: Rig, grammars: FakeGrammars
) -> None:
    first, second, third = (rig.send(PROMPT, new=3, grammar=A) for _ in range(3))
    rig.scheduler.turn()
    grammars.answer(first, second)

    rig.turn_until(lambda: len(rig.tokens(second)) == 1)
    assert len(rig.plans[-1].sampled) == 2
    assert rig.tokens(third) == []

    grammars.instant = True
    rig.run()
    for request_id in (first, second, third):
        assert rig.tokens(request_id) == expected_output(PROMPT, 3, VOCAB)
        assert grammars.accepted[request_id] == rig.tokens(request_id)[:2]


def test_a_server_without_grammars_refuses_them() -> None:
    rig = Rig(SIZES)
    rig.send(PROMPT, grammar=A)

    rig.run()

    assert [(refusal.reason, refusal.param) for refusal in rig.refusals()] == [("grammar", "regex")]


def test_a_prompt_that_is_only_computed_needs_no_grammar(rig: Rig) -> None:
    request_id = rig.send(PROMPT, new=0, grammar=A)

    rig.run()

    assert rig.outputs(request_id)[-1].finish == "length"


class MaskedRunner(TokenRunner):
    """A token runner whose tokens are always among those that the grammars allow."""

    def _pick(self, row: SampledRow) -> int:
        """Move each token to one that is allowed."""
        token = next_token(row.logits, self.vocab)
        if row.mask is None:
            return token
        allowed = np.flatnonzero(np.unpackbits(row.mask.view(np.uint8), bitorder="little"))
        return int(allowed[token % len(allowed)])


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrammarPool]:
    """Real grammars over the stand-in's vocabulary."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer().save(str(folder / "tokenizer.json"))
    settings = NurserySettings(str(folder), VOCAB_SIZE, [EOS_ID])
    pool = GrammarPool(PoolSettings(settings, limit_s=60.0))
    yield pool
    pool.shut_down()


def finished(rig: Rig, request_id: int) -> Output | None:
    outputs = rig.outputs(request_id)
    return outputs[-1] if outputs and outputs[-1].finish is not None else None


def test_retracted_requests_go_on_where_their_grammar_was(pool: GrammarPool) -> None:
    """Pages for about two of four: each is thrown out and comes back, some of them often."""
    sizes = PoolSizes(full_pages=14, swa_pages=40, states=20)
    runner = MaskedRunner(SMALL, sizes, vocab=VOCAB_SIZE)
    rig = Rig(sizes, grammars=pool, eos=(EOS_ID,), runner=runner, context=100)
    pattern, tokenizer = "([a-f]{2}[0-9]{3}-){6}z", train_tokenizer()
    # Where grammars come one long after the other, their requests do not meet.
    for attempt in range(20):
        firsts = range(11 + 4 * attempt, 15 + 4 * attempt)
        prompts = [[first, 2, 3, 4, 5, 6, 7, 8, 9, 10] for first in firsts]
        sent = [rig.send(p, new=60, grammar=Grammar("regex", pattern)) for p in prompts]
        free = rig.send([9, 9, 9, 9], new=40)

        rig.run(turns=100_000)

        for request_id in sent:
            last = finished(rig, request_id)
            assert last is not None
            assert (last.finish, last.matched_stop) == ("stop", EOS_ID)
            assert re.fullmatch(pattern, tokenizer.decode(rig.tokens(request_id)))
        assert len(rig.tokens(free)) == 40
        if rig.replica.stats.counters["retracted_requests"] > 0:
            break
    assert rig.replica.stats.counters["retracted_requests"] > 0
    assert not pool.active
    rig.assert_conserved()
