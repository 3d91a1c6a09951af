"""Tests of runtime.lang.recent: what need not be computed again."""

import pytest

from runtime.errors import BadRequest
from runtime.lang.backend import Backend
from runtime.lang.program import Program, function
from runtime.lang.prompt import Prompt
from runtime.lang.recent import FRESH_S, MOST, Recent
from runtime.lang.state import State
from runtime.lang.words import assistant, gen, system, user, user_begin, user_end
from tests.runtime.lang.fake import FakeBackend
from tests.runtime.lang.three_backends import NAMES, Model, make_backend

LONG = "This text is long enough to be worth computing it once, before all programs run. "
BATCH = [{"q": "why"}, {"q": "how"}]


@function
def plain(s: State, q: str) -> None:
    """Ask in plain text."""
    s += LONG + q + gen("x")


@function
def chat(s: State, q: str) -> None:
    """Ask in a chat."""
    s += system(LONG)
    s += user(q) + assistant(gen("x"))


def test_what_was_noted_is_known_for_a_while() -> None:
    now = [0.0]
    kept = Recent(lambda: now[0])
    first, second = Prompt(pieces=("a",)), Prompt(pieces=("b",))
    kept.note(first)

    assert kept.has(first)
    assert not kept.has(second)
    now[0] = FRESH_S
    assert not kept.has(first)


def test_few_are_kept_and_clearing_forgets_them() -> None:
    kept = Recent()
    prompts = [Prompt(pieces=(str(k),)) for k in range(MOST + 1)]
    for prompt in prompts:
        kept.note(prompt)

    assert [kept.has(prompt) for prompt in prompts] == [False] + [True] * MOST
    kept.clear()
    assert not any(kept.has(prompt) for prompt in prompts)


@pytest.mark.parametrize("program", [plain, chat])
def test_a_batch_commits_only_what_was_not_computed_lately(program: Program) -> None:
    backend, other = FakeBackend(), FakeBackend()
    program.run("who", backend=backend)
    for used in (backend, other, other):
        program.run_batch(BATCH, backend=used)

    assert backend.cached == []
    assert len(other.cached) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_same_batch_again_costs_no_request_more(name: str) -> None:
    model = Model()
    backend: Backend = make_backend(name, model)
    counts: list[int] = []
    sent = model.native

    def count(body: dict[str, object]) -> dict[str, object]:
        counts[-1] += 1
        return sent(body)

    model.native = count  # type: ignore[method-assign]
    for _ in range(2):
        counts.append(0)
        plain.run_batch(BATCH, backend=backend)

    assert counts == ([0, 0] if name == "openai" else [3, 2])


class _Closing(FakeBackend):
    """A backend whose chat format leaves no turn of a user open."""

    async def cache_prefix(self, prompt: Prompt) -> None:
        """Refuse open turns."""
        if prompt.unfinished:
            raise BadRequest("no")
        await super().cache_prefix(prompt)


def test_of_a_turn_that_cannot_be_left_open_the_turns_before_it_are_computed() -> None:
    @function
    def forked(s: State, above: bool) -> None:
        if above:
            s += system(LONG)
        s += user_begin() + "Say: "
        forks = s.fork(2)
        forks += "it." + user_end() + assistant(gen("x"))

    backend = _Closing()
    for above in (False, True):
        forked.run(above, backend=backend)

    assert backend.cached == ["[system]" + LONG]
    assert len(backend.prompts) == 4
