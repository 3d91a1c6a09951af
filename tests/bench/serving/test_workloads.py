"""Workloads have the sizes they say, are the same for a seed, and are shared where they say."""

import random

import pytest

from tests.bench.serving.prompt import Asked, Prompt
from tests.bench.serving.summary import ideal_hits
from tests.bench.serving.test_summary import played
from tests.bench.serving.workload import Call, Workload
from tests.bench.serving.workloads import (
    RECIPES,
    AgentTree,
    LongContext,
    MultiTurn,
    RandomPrompts,
    Recipe,
    SharedPrefix,
)

VOCAB_SIZE = 1000
SMALL: dict[str, Recipe] = {
    "shared-prefix": SharedPrefix(3, 4, system_tokens=20, user_tokens=5, output_tokens=2),
    "multi-turn": MultiTurn(5, 4, system_tokens=64, user_tokens=8, output_tokens=2),
    "agent-tree": AgentTree(
        2, 3, 2, system_tokens=30, root_tokens=10, step_tokens=4, output_tokens=2
    ),
    "long-context": LongContext("200,100", count=2, output_tokens=2),
    "random": RandomPrompts(6, input_tokens=40, output_tokens=4, range_ratio=0.5),
}


def build(recipe: Recipe, seed: int = 1) -> Workload:
    """Return the calls of `recipe`."""
    return recipe.build(random.Random(seed), VOCAB_SIZE)


def brute_force(asked: list[Asked]) -> list[int]:
    """Return the ideal hits by comparing each prompt with everything before it."""
    known: list[list[int]] = []
    hits: list[int] = []
    for one in asked:
        prompt = one.prompt.ids
        best = 0
        for other in known:
            pairs = zip(prompt, other, strict=False)
            same = next((k for k, (a, b) in enumerate(pairs) if a != b), None)
            best = max(best, min(len(prompt), len(other)) if same is None else same)
        hits.append(min(best, len(prompt) - 1))
        known.append([*prompt, *one.answer_ids])
    return hits


@pytest.mark.parametrize("name", SMALL)
def test_the_ideal_is_what_comparing_everything_with_everything_finds(name: str) -> None:
    asked = played(build(SMALL[name]))

    assert ideal_hits(asked) == brute_force(asked)


@pytest.mark.parametrize("name", SMALL)
def test_a_seed_gives_the_same_calls_again_and_another_seed_others(name: str) -> None:
    assert build(SMALL[name], 1) == build(SMALL[name], 1)
    assert build(SMALL[name], 1) != build(SMALL[name], 2)


def test_every_recipe_has_a_small_one_here() -> None:
    assert SMALL.keys() == RECIPES.keys()


def test_conversations_share_the_system_prompt_and_repeat_their_past() -> None:
    workload = build(SMALL["multi-turn"])

    hits = ideal_hits(played(workload))

    assert len(workload.roots) == 5
    # All but the first find the system prompt; a turn finds all of the turn before it.
    turns = [64, 64 + 8 + 2, 64 + 16 + 4, 64 + 24 + 6]
    by_turn = [hits[5 * turn : 5 * turn + 5] for turn in range(4)]
    assert by_turn == [[0, 64, 64, 64, 64], *([hit] * 5 for hit in turns[1:])]


def test_the_defaults_of_multi_turn_are_the_published_ones() -> None:
    workload = MultiTurn().build(random.Random(0), 100_000)
    asked = played(workload)

    prompts = sum(len(one.prompt.ids) for one in asked)
    assert prompts == 32 * (4 * 8192 + 10 * 1024 + 6 * 128)
    assert sum(ideal_hits(asked)) / prompts == pytest.approx(0.9006, abs=1e-4)


def test_branches_of_a_tree_share_all_that_came_before_them() -> None:
    workload = build(SMALL["agent-tree"])

    hits = ideal_hits(played(workload))

    assert [len(kids) for kids in workload.children[:3]] == [2, 2, 2]
    # Breadth first: two roots, then four calls, then eight.
    assert hits == [0, 30, *[42] * 4, *[48] * 8]


def test_questions_share_only_their_own_prefix() -> None:
    hits = ideal_hits(played(build(SMALL["shared-prefix"])))

    assert sorted(hits) == [0] * 3 + [20] * 9


def test_long_prompts_come_shortest_first_and_share_nothing() -> None:
    workload = build(SMALL["long-context"])

    assert [len(call.user) for call in workload.calls] == [100, 100, 200, 200]
    assert [call.group for call in workload.calls][::2] == ["100 tokens", "200 tokens"]


def test_random_lengths_stay_in_their_range() -> None:
    recipe = RandomPrompts(200, input_tokens=40, output_tokens=4, range_ratio=0.5)
    lengths = {len(call.user) for call in build(recipe).calls}

    assert (min(lengths), max(lengths)) == (20, 40)
    with pytest.raises(ValueError, match="range-ratio"):
        build(RandomPrompts(range_ratio=2.0))


@pytest.mark.parametrize("parent", [0, 1, -1])
def test_a_call_cannot_go_on_from_what_comes_later(parent: int) -> None:
    with pytest.raises(ValueError, match="cannot go on"):
        Workload("bad", [Call([1], 1, parent=parent), Call([1], 1)])


def test_a_prompt_says_the_same_in_ids_and_in_messages() -> None:
    prompt = Prompt.begin(Call([5, 6], 2, system=[1, 2, 3]))
    grown = prompt.go_on([7, 8], "said this", Call([9], 2, parent=0))

    assert grown.ids == [1, 2, 3, 5, 6, 7, 8, 9]
    assert [role for role, _ in grown.messages] == ["system", "user", "assistant", "user"]
    assert len(grown.messages[0][1].split()) == 3
    assert grown.messages[2][1] == "said this"
