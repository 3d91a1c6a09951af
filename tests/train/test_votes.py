"""Who got more votes is what counting says, and what a part of the votes does not tell."""

import re
from collections import Counter
from random import Random

import pytest

from tests.train.dialogue import Reply
from tests.train.held_out import held_out
from tests.train.tasks.filler import OPENINGS, READ
from tests.train.tasks.votes import CANDIDATES, Votes

_TOKEN = re.compile(r"\w+|[;,]")
_BLOCKS, _RATIO = 64, 4


def _cast(message: str) -> list[str]:
    """Return the votes of a message that gives a list, as its tokens."""
    return _TOKEN.findall(message.partition("\n")[0].partition(":")[2])


@pytest.mark.parametrize("longest", [60, 2000])
def test_the_answer_is_who_has_clearly_more_of_all_votes(longest: int) -> None:
    thread = Votes(Random(longest), longest)
    counts: Counter[str] = Counter()
    asked = cumulative = 0
    for _ in range(300):
        question, answer = thread.step(0)
        given = Counter(word for word in _cast(question.content) if word in CANDIDATES)
        if given.total() >= 12:
            opening = question.content.partition(":")[0]
            goes_on = opening.startswith("And") or "more" in opening.lower()
            cumulative += goes_on
            counts = counts + given if goes_on else given
        if answer.check is None:
            continue
        last = question.content.rpartition("\n")[2]
        names = {word for word in re.findall(r"\w+", last) if word in counts} or set(counts)
        [(winner, most), (_, fewer)] = Counter({name: counts[name] for name in names}).most_common(
            2
        )
        asked += 1
        assert answer.content == f"It is {winner}.", question.content
        assert most >= 1.2 * fewer
        assert answer.check.passes(Reply(answer.content))

    assert asked > 100
    assert cumulative > 10


def test_a_candidate_is_in_one_vote_only() -> None:
    thread = Votes(Random(3), 100)
    seen: list[set[str]] = []
    for _ in range(1500):
        thread.step(0)
        now = set(thread.counts)
        if not seen or now != seen[-1]:
            assert not any(now & earlier for earlier in seen)
            seen.append(now)

    assert len(seen) > 15
    assert len(thread.known) > 0.9 * len(CANDIDATES), "until there are no more"


def test_nobody_is_asked_about_without_a_name_where_others_of_the_kind_stood_for_a_vote() -> None:
    thread = Votes(Random(4), 60)
    unnamed, repeated = 0, False
    kinds: set[str] = set()
    now: set[str] = set()
    for _ in range(300):
        question, _ = thread.step(0)
        if set(thread.counts) != now:
            now = set(thread.counts)
            repeated = thread.who in kinds
            kinds.add(thread.who)
        last = question.content.rpartition("\n")[2]
        if last.endswith("?") and not any(word in thread.counts for word in _TOKEN.findall(last)):
            unnamed += 1
            assert not repeated, question.content

    assert 3 < unnamed <= len(kinds)


def test_prose_stands_between_votes_and_what_is_asked_of_them() -> None:
    thread = Votes(Random(5), 100, apart_share=1.0)
    lists = 0
    for _ in range(200):
        question, answer = thread.step(0)
        if thread.apart:
            lists += 1
            assert answer.check is None
            question, answer = thread.step(0)
            assert question.content.startswith(OPENINGS)
            assert answer.content == READ
            _, answer = thread.step(0)
            assert answer.check is not None

    assert lists > 20


@pytest.mark.parametrize("tokens", [2048, 8192])
def test_as_many_tokens_as_blocks_of_4_bring_are_often_wrong_about_all(tokens: int) -> None:
    rng, right, dialogues = Random(tokens), Counter[str](), 150
    for dialogue in held_out("votes", seed=6, n=dialogues, tokens=tokens):
        check = dialogue.turns[dialogue.checked()[0]].check
        assert check is not None
        names = (check.expected, *check.rivals)
        votes = _cast(dialogue.turns[0].content)
        blocks = [votes[at : at + _RATIO] for at in range(0, len(votes), _RATIO)]
        sample = [vote for block in rng.sample(blocks, _BLOCKS) for vote in block]
        for what, read in (("all", votes), ("sample", sample), ("last", votes[-128:])):
            counts = Counter({name: read.count(name) for name in names})
            right[what] += counts.most_common(1)[0][0] == check.expected

    assert right["all"] == dialogues
    assert right["sample"] < 0.98 * dialogues
    assert right["last"] < 0.75 * dialogues
