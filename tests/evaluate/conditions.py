"""In which state of the cache a prompt is asked: how that is brought about, how it is proven.

    cold       nothing of the prompt is in the cache
    hit        the same prompt was asked before: all but its last token is there
    turn       the turn before it was asked and answered: it goes on where that ended
    replay     only a prompt with another last message was asked, and its resume points were evicted
               since: pages up to there, and no point, so that the tokens a window can depend on
               are computed again
    tombstone  the same prompt was asked before, and since then its resume points were evicted
               while its pages stayed

Every case is asked the same way under each of them. Cache salts keep the conditions apart: cold,
hit and tombstone share one, in this order; turn and replay have one each.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.evaluate.answer import Answer, Verdict, judge
from tests.evaluate.case import Case

CONDITIONS = ("cold", "hit", "turn", "replay", "tombstone")
# A server whose few rings make points be evicted by a handful of requests, oldest first, and where
# nothing is computed that was not asked for.
SMALL_POOLS = (
    *("--eviction-policy", "lru", "--max-running-requests", "2", "--rings", "8"),
    *("--swa-pages", "48", "--disable-next-turn-prefill"),
)
_OF_HISTORY = ("turn", "replay")


class Server(Protocol):
    """What the evaluation wants of a server.

    replay_tokens  how far before the end of the pages a replay begins
    """

    replay_tokens: int

    def ask(self, body: Mapping[str, Any], *, salt: str) -> Answer:
        """Return the greedy answer to a chat, asked within the cache namespace `salt`."""
        ...

    def counters(self) -> Mapping[str, float]:
        """Return the scheduler's counters."""
        ...

    def evict_points(self) -> None:
        """Send other traffic until the resume points of all that went before are gone."""
        ...


@dataclass(frozen=True, slots=True)
class Met:
    """How a prompt met the cache, in tokens.

    prompt    of the prompt
    cached    that were not computed
    again     computed although their pages were there
    before    of the prompt of the turn before, under "turn"
    """

    prompt: int
    cached: int
    again: int
    before: int = 0

    @property
    def kept(self) -> int:
        """How much of the prompt had its pages in the cache."""
        return self.cached + self.again


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case under one condition on one variant of the server.

    met       None where requests ran side by side, so that counters belong to none of them
    happened  whether the condition is proven to have been what its name says
    """

    case: Case
    variant: str
    condition: str
    answer: Answer
    verdict: Verdict
    met: Met | None
    happened: bool


def happened(condition: str, met: Met, replay_tokens: int) -> bool:
    """Say whether a prompt was met as `condition` says."""
    match condition:
        case "cold":
            return met.kept == 0
        case "hit":
            return met.cached == met.prompt - 1 and not met.again
        case "turn":
            # The point at a prompt's end serves its last token as well, which the next turn's
            # prompt does not repeat where reasoning is dropped.
            return 0 < met.before - 1 <= met.cached < met.prompt
        case "replay":
            return met.again == min(met.kept, replay_tokens) and 0 < met.kept < met.prompt - 1
        case "tombstone":
            return met.again == min(met.kept, replay_tokens) and 0 < met.kept == met.prompt - 1
        case _:
            raise KeyError(condition)


def ask_cold(case: Case, server: Server, variant: str) -> Outcome:
    """Ask a case in a namespace of its own; others may be asked at the same time."""
    answer = server.ask(case.body(), salt=case.key)
    return Outcome(
        case, variant, "cold", answer, judge(case, answer), None, not answer.cached_tokens
    )


def ask_all(
    case: Case, server: Server, variant: str, conditions: Sequence[str]
) -> Iterator[Outcome]:
    """Ask a case under each condition, cold first; nothing else may run on the server.

    What needs a turn before is left out where there is none.
    """
    for condition in CONDITIONS:
        if condition != "cold" and condition not in conditions:
            continue
        if condition in _OF_HISTORY and case.earlier() is None:
            continue
        yield _ask(case, server, variant, condition)


def _ask(case: Case, server: Server, variant: str, condition: str) -> Outcome:
    salt = f"{case.key}-{condition}" if condition in _OF_HISTORY else case.key
    before = 0
    if condition == "turn":
        earlier = case.earlier()
        assert earlier is not None
        before = server.ask(earlier, salt=salt).prompt_tokens
    elif condition == "replay":
        server.ask({**case.sibling(), "max_tokens": 1}, salt=salt)
        server.evict_points()
    elif condition == "tombstone":
        server.evict_points()
    old = server.counters()
    answer = server.ask(case.body(), salt=salt)
    new = server.counters()
    again = sum(int(new[name] - old[name]) for name in ("replayed_tokens", "recomputed_tokens"))
    met = Met(answer.prompt_tokens, answer.cached_tokens, again, before)
    proven = happened(condition, met, server.replay_tokens)
    return Outcome(case, variant, condition, answer, judge(case, answer), met, proven)
