"""Dialogues to evaluate with, from seeds that training never uses.

A dialogue of a wanted length says at its beginning what is asked at its end; in between there is
prose and talk that states nothing. Only the questions at the end are checked.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Literal

from tests.train.dialogue import Dialogue, Exchange, Turn
from tests.train.mixture import THREADS, weave
from tests.train.tasks.facts import Facts
from tests.train.tasks.filler import Filler
from tests.train.tasks.json_format import JsonFormat
from tests.train.tasks.needle import Needles
from tests.train.tasks.overview import Overview
from tests.train.tasks.pairs import Pairs
from tests.train.tasks.small_talk import SmallTalk
from tests.train.tasks.thread import Thread, size_of
from tests.train.tasks.tool_calls import ToolCalls
from tests.train.tasks.votes import Votes

TASKS = (*THREADS, "json_schema", "tool_calls")
# Tasks whose answer is in one place, at a distance from the question.
PLACED = ("facts", "pairs", "needle")
# Tasks about a text as a whole, at its length.
WHOLE = ("overview", "votes")
_STATEMENTS = 3
# Of the tokens before a question about votes, those that are votes; the rest stands in between.
_VOTES_PART = 0.7
_FEWEST_VOTES = 40
# How far the winner is ahead of any other.
_FACTORS = (1.3, 1.8)
_PAIRS = 20
_MOST_TRIES = 200


def held_out(
    task: str,
    *,
    seed: int,
    n: int,
    tokens: int,
    questions: int = 1,
    thinking: bool = False,
    effort: Literal["low", "high"] = "high",
) -> Iterator[Dialogue]:
    """Yield `n` dialogues whose last `questions` exchanges are checked.

    task      one of `TASKS`
    tokens    about how many tokens there are before the first checked question; for a task of
              `PLACED` also about its distance from the answer's place
    Raises KeyError for any other task.
    """
    for number in range(n):
        rng = Random(f"held out {task} {seed} {tokens} {number}")
        dialogue = _dialogue(task, rng, tokens, questions)
        dialogue.thinking, dialogue.effort = thinking, effort
        yield dialogue


def _dialogue(task: str, rng: Random, tokens: int, questions: int) -> Dialogue:
    if task == "tool_calls":
        calls = ToolCalls(rng)
        return Dialogue(_asked(rng, calls, task, tokens, questions), tools=calls.tools)
    if task == "json_schema":
        thread = JsonFormat(rng, with_schema=True)
        # Everything in such a conversation is answered in JSON, so that nothing else fills it.
        before = weave(rng, [(thread, 1.0)], tokens - 60) if tokens > 60 else []
        turns = [*map(_unchecked, before), *_checked(thread, questions, tokens, placed=False)]
        return Dialogue(turns, response_format=thread.response_format)
    return Dialogue(_asked(rng, _thread(task, rng, tokens, questions), task, tokens, questions))


def _thread(task: str, rng: Random, tokens: int, questions: int) -> Thread:
    match task:
        case "facts":
            return Facts(rng, state_share=1.0)
        case "pairs":
            return Pairs(rng, most=max(4, min(_PAIRS, tokens // 10)), list_share=0.0)
        case "needle":
            return Needles(rng, longest=max(tokens, 30), text_share=0.0, first=max(tokens, 30))
        case "overview":
            return Overview(rng, longest=max(tokens, 100), first=max(tokens - 60, 40))
        case "votes":
            first = max(_FEWEST_VOTES, int(tokens * _VOTES_PART))
            return Votes(
                rng,
                longest=first,
                first=first,
                factors=_FACTORS,
                rows_share=1.0,
                more=False,
            )
        case _:
            return THREADS[task](rng, tokens)


def _asked(rng: Random, thread: Thread, task: str, tokens: int, questions: int) -> list[Turn]:
    """Return what is stated, what stands between, and the questions."""
    placed = task in PLACED
    turns: list[Turn] = []
    if placed or task in WHOLE:
        turns += _stated(thread, rng)
    at = size_of(tuple(turns))
    if task not in ("needle", "overview") and tokens - at > 40:
        longest = max(40, min(1500, (tokens - at) // 3))
        between = [(Filler(rng, longest), 1.0), (SmallTalk(rng), 0.5)]
        turns += weave(rng, between, tokens - at)
    return [*map(_unchecked, turns), *_checked(thread, questions, tokens, placed=placed)]


def _stated(thread: Thread, rng: Random) -> list[Turn]:
    if isinstance(thread, Facts):
        turns = [turn for _ in range(rng.randint(1, _STATEMENTS)) for turn in thread.step(0)]
        thread.state_share = 0.0
        return turns
    return list(thread.step(0))


def _checked(thread: Thread, questions: int, tokens: int, *, placed: bool) -> list[Turn]:
    """Return so many exchanges with a check; where answers have places, only such."""
    turns: list[Turn] = []
    found = 0
    for _ in range(_MOST_TRIES):
        if found == questions:
            return turns
        exchange = thread.step(tokens)
        if _is_checked(exchange, placed=placed):
            turns += exchange
            found += 1
    raise AssertionError("a thread asks too little")


def _is_checked(exchange: Exchange, *, placed: bool) -> bool:
    checks = [turn.check for turn in exchange if turn.check is not None]
    return any(check.source or not placed for check in checks)


def _unchecked(turn: Turn) -> Turn:
    return replace(turn, check=None)
