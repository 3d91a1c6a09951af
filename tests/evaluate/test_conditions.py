"""Each state of the cache is brought about in the right order, and believed only when proven."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.evaluate.answer import Answer
from tests.evaluate.case import Case, Cell, make_cases
from tests.evaluate.conditions import CONDITIONS, Met, ask_all, ask_cold, happened
from tests.train.dialogue import Reply

REPLAY_TOKENS = 12


class FakeServer:
    """A server whose tokens are characters: it keeps all pages, and points at prompts' ends.

    forgets  whether `evict_points` does what it says
    """

    def __init__(self, *, forgets: bool = True) -> None:
        self.replay_tokens = REPLAY_TOKENS
        self.asked: list[tuple[str, int]] = []
        self._forgets = forgets
        self._pages: dict[str, set[str]] = {}
        self._points: dict[str, set[str]] = {}
        self._again = {"replayed_tokens": 0.0, "recomputed_tokens": 0.0}

    def ask(self, body: Mapping[str, Any], *, salt: str) -> Answer:
        """Reuse what a tree of this salt would."""
        messages: Sequence[Mapping[str, Any]] = body["messages"]
        prompt = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        prompt += "<assistant>"
        self.asked.append((salt, len(messages)))
        pages = self._pages.setdefault(salt, set())
        points = self._points.setdefault(salt, set())
        most = len(prompt) - 1
        kept = max((_common(prompt, other, most) for other in pages), default=0)
        start = max((min(len(p), most) for p in points if prompt.startswith(p)), default=0)
        if not start and kept > self.replay_tokens:
            start = kept - self.replay_tokens
            self._again["replayed_tokens"] += kept - start
        else:
            self._again["recomputed_tokens"] += kept - start
        pages.add(prompt)
        points.add(prompt)
        return Answer(Reply("yes"), "stop", 0, (1,), len(prompt), start)

    def counters(self) -> Mapping[str, float]:
        """Return both counters so far."""
        return dict(self._again)

    def evict_points(self) -> None:
        """Forget all points, if it is that kind of server."""
        self.asked.append(("strangers", 0))
        if self._forgets:
            self._points.clear()


def _common(one: str, other: str, most: int) -> int:
    count = 0
    while count < min(most, len(other)) and one[count] == other[count]:
        count += 1
    return count


def _case(task: str = "needle", tokens: int = 200) -> Case:
    [case, *_] = make_cases([Cell(task, tokens, 1)], seed=1)
    return case


def test_all_conditions_happen_and_are_proven() -> None:
    outcomes = list(ask_all(_case(), FakeServer(), "default", CONDITIONS))

    assert [one.condition for one in outcomes] == list(CONDITIONS)
    assert [one.happened for one in outcomes] == [True] * 5
    assert len({one.answer.prompt_tokens for one in outcomes}) == 1, "the same prompt each time"
    met = {one.condition: one.met for one in outcomes}
    assert met["cold"] == Met(outcomes[0].answer.prompt_tokens, 0, 0)
    assert [one.met.again for one in outcomes if one.met is not None] == [0, 0, 0, 12, 12]


def test_points_that_stay_make_no_tombstone() -> None:
    outcomes = list(ask_all(_case(), FakeServer(forgets=False), "default", CONDITIONS))

    assert [one.happened for one in outcomes] == [True, True, True, True, False]


def test_a_cache_that_is_warm_already_is_not_cold() -> None:
    server, case = FakeServer(), _case()
    server.ask(case.body(), salt=case.key)

    [cold] = ask_all(case, server, "default", ())

    assert not cold.happened
    assert not ask_cold(case, server, "default").happened


def test_cold_is_always_asked_and_always_first() -> None:
    outcomes = ask_all(_case(), FakeServer(), "default", ("tombstone", "hit"))

    assert [one.condition for one in outcomes] == ["cold", "hit", "tombstone"]


def test_strangers_come_between_the_hit_and_the_tombstone() -> None:
    server, case = FakeServer(), _case()

    list(ask_all(case, server, "default", ("hit", "tombstone")))

    [question, *_] = server.asked
    assert server.asked == [question, question, ("strangers", 0), question]


def test_turn_and_replay_share_no_namespace_with_the_others() -> None:
    server, case = FakeServer(), _case()

    list(ask_all(case, server, "default", CONDITIONS))

    assert {salt for salt, _ in server.asked} == {
        case.key, f"{case.key}-turn", f"{case.key}-replay", "strangers"
    }  # fmt: skip


def test_a_first_turn_has_no_history_to_go_on_from() -> None:
    cases = list(make_cases([Cell("sums", None, 8)], seed=3))
    first = next(case for case in cases if case.earlier() is None)

    outcomes = ask_all(first, FakeServer(), "default", CONDITIONS)

    assert [one.condition for one in outcomes] == ["cold", "hit", "tombstone"]


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("cold", Met(100, 1, 0)),
        ("cold", Met(100, 0, 1)),
        ("hit", Met(100, 98, 0)),
        ("hit", Met(100, 60, 39)),
        ("turn", Met(100, 30, 0, 60)),
        ("turn", Met(100, 0, 0, 0)),
        ("replay", Met(100, 0, 0)),
        ("replay", Met(100, 60, 0)),
        ("replay", Met(100, 87, 12)),
        ("tombstone", Met(100, 99, 0)),
        ("tombstone", Met(100, 60, 12)),
        ("tombstone", Met(1, 0, 0)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.cached}+{value.again}",
)
def test_what_looks_almost_like_it_does_not_count(condition: str, met: Met) -> None:
    assert not happened(condition, met, REPLAY_TOKENS)


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ("turn", Met(100, 59, 0, 60)),
        ("turn", Met(100, 70, 3, 60)),
        ("replay", Met(100, 0, 8)),
        ("replay", Met(100, 50, 12)),
        ("tombstone", Met(9, 0, 8)),
        ("tombstone", Met(100, 87, 12)),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.cached}+{value.again}",
)
def test_short_prompts_are_computed_whole_and_longer_ones_from_a_replay_back(
    condition: str, met: Met
) -> None:
    assert happened(condition, met, REPLAY_TOKENS)
