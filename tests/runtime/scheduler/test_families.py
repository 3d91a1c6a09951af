"""Other groups of pools than V4's, in the real scheduler: no window, no state, states of two forms.

Every step verifies the tree and its pools (`check_every_step`); what was reused is compared with a
scheduler that reuses nothing.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from layers.models.contract import Network, Settings
from layers.models.gpt_oss.model import read as read_gpt_oss
from layers.weights.loading import fill_dummy
from mem_cache.spec import PoolSizes, TreeSpec
from tests.testing.cpu_runner import network_runner, tiny_network
from tests.testing.direct import CPU
from tests.testing.gpt_oss_checkpoints import published_config
from tests.testing.gqa_checkpoints import VOCAB as WORDS
from tests.testing.scheduler_rig import Rig
from tests.testing.tiny_model import CONFIG
from tests.testing.toy_family import Toy

WINDOW, PAGE, VOCAB = 12, 32, 96


def toy(*windows: int) -> Network:
    """Return a random network of a toy family with these layers."""
    network = Toy(VOCAB, 32, (1,), windows, page_size=PAGE).build(CPU, Settings())
    fill_dummy(network, 5)
    return network


def gpt_oss() -> Network:
    """Return a random network whose windows are wider than an SWA page."""
    network = read_gpt_oss(published_config("wide"), {}, {}).build(CPU, Settings())
    fill_dummy(network, 5)
    return network


@dataclass(frozen=True)
class Family:
    """A network, what it can say, and pools that are ample or short.

    page    tokens of a page, by which prompts are measured
    chunk   tokens of a prefill step
    new     tokens of an answer: rows are retracted where it is longer than a page
    """

    make: Callable[[], Network]
    vocab: int
    page: int
    chunk: int
    new: int
    ample: PoolSizes
    short: PoolSizes


FAMILIES = {
    "pages alone": Family(
        lambda: toy(0, 0), VOCAB, PAGE, 40, 36, PoolSizes(120, 0, 0), PoolSizes(9, 0, 0)
    ),
    "windows on half": Family(
        lambda: toy(WINDOW, 0, WINDOW, 0),
        *(VOCAB, PAGE, 40, 36),
        PoolSizes(120, 160, 0),
        PoolSizes(9, 14, 0),
    ),
    "windows wider than their pages": Family(
        gpt_oss, *(WORDS, 256, 300, 6), PoolSizes(60, 160, 0), PoolSizes(9, 14, 0)
    ),
    "states of two forms": Family(
        lambda: tiny_network(draft_tokens=3),
        *(CONFIG.vocab_size, 256, 300, 6),
        PoolSizes(60, 160, 40, live_states=4),
        PoolSizes(9, 34, 8, live_states=4),
    ),
}


def rig_of(
    family: Family, sizes: PoolSizes, *, reuse: bool = True, chunk: int | None = None
) -> Rig:
    network = family.make()
    runner = network_runner(
        network, network.pools(sizes), vocab=family.vocab, pages=sizes.full_pages
    )
    return Rig(
        sizes,
        spec=network.cache.tree,
        replay=network.cache.replay_tokens,
        reuse=reuse,
        chunk=chunk or family.chunk,
        runner=runner,
    )


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    """Each of the families."""
    return FAMILIES[request.param]


def draw_ids(draw: random.Random, family: Family, count: int) -> list[int]:
    return [draw.randrange(2, family.vocab) for _ in range(count)]


def conversations(draw: random.Random, family: Family, count: int) -> list[list[int]]:
    """Return prompts that begin alike, part inside pages and at ends, and go on from others."""
    page = family.page
    bases = [draw_ids(draw, family, length) for length in (2 * page, page + 5, page - 3)]
    prompts: list[list[int]] = []
    for _ in range(count):
        base = draw.choice([*bases, *prompts])[: 3 * page]
        prompts.append([*base, *draw_ids(draw, family, draw.randrange(1, page))])
    return prompts


def cold(family: Family, prompts: list[list[int]], new: int) -> list[list[int]]:
    """Return what a scheduler says that computes every prompt anew."""
    rig = rig_of(family, family.ample, reuse=False, chunk=-1)
    sent = [rig.send(prompt, new, ignore_eos=True) for prompt in prompts]
    rig.run()
    return [rig.tokens(request) for request in sent]


def test_a_repeated_prompt_computes_one_token_and_says_the_same(family: Family) -> None:
    """A point at the end of a prompt serves the position before it, too, wherever pages end."""
    page, draw = family.page, random.Random(4)
    lengths = [2 * page + draw.randrange(page) for _ in range(6)] + [2 * page, 2 * page + 1]
    prompts = [draw_ids(draw, family, length) for length in lengths]
    rig = rig_of(family, family.ample)
    for prompt in prompts:
        rig.send(prompt, 3, ignore_eos=True)
    rig.run()

    again = [rig.send(prompt, 3, ignore_eos=True) for prompt in prompts]
    rig.run()

    assert [rig.cached(one) for one in again] == [length - 1 for length in lengths]
    assert [rig.tokens(one) for one in again] == cold(family, prompts, 3)


def test_the_next_turn_computes_only_what_is_new(family: Family) -> None:
    rig, draw = rig_of(family, family.ample), random.Random(1)
    prompt = draw_ids(draw, family, 2 * family.page + 7)

    first = rig.send(prompt, 5, ignore_eos=True)
    rig.run()
    history = [*prompt, *rig.tokens(first), *draw_ids(draw, family, 9)]
    second = rig.send(history, 3, ignore_eos=True)
    again = rig.send(history, 3, ignore_eos=True)
    rig.run()

    # The last token of an answer is fed by nobody.
    assert rig.cached(second) == len(prompt) + 4
    assert rig.cached(again) >= rig.cached(second)
    assert [rig.tokens(second), rig.tokens(again)] == cold(family, [history] * 2, 3)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_reused_evicted_and_retracted_changes_no_token(family: Family, seed: int) -> None:
    draw, new = random.Random(seed), family.new
    prompts = conversations(draw, family, 8)
    rig, expected = rig_of(family, family.short), cold(family, prompts, new)

    sent: list[int] = []
    for prompt in prompts:
        # One at a time or together, and now and then as a fork.
        sent.append(rig.send(prompt, new, ignore_eos=True))
        if draw.random() < 0.3:
            rig.send(prompt, new, ignore_eos=True)
        if draw.random() < 0.4:
            rig.run()
    rig.run()

    assert [rig.tokens(request) for request in sent] == expected
    cache, counters = rig.residency.cache, rig.replica.stats.counters
    assert cache.evicted_pages
    assert counters["cached_tokens"]
    assert (counters["retracted_requests"] > 0) == (family.new > family.page)
    assert (cache.evicted_points > 0) == rig.spec.has_points
    rig.assert_conserved()


def test_where_pages_are_all_every_position_is_a_point() -> None:
    family = FAMILIES["pages alone"]
    rig, prompt = rig_of(family, family.ample), [*range(2, 2 + 70)]
    rig.send(prompt, 1)
    rig.run()

    for shared in (1, PAGE - 1, PAGE, PAGE + 1, 69):
        request = rig.send([*prompt[:shared], 90, 91], 1)
        rig.run()
        assert rig.cached(request) == shared

    assert rig.residency.cache.points == 0
    assert rig.replica.stats.counters["recomputed_tokens"] == 0
    assert rig.replica.stats.counters["replayed_tokens"] == 0


# Two windows reach back. That of the toy counts a token of its own more, the last of them whole.
@pytest.mark.parametrize(
    ("name", "replayed"),
    [("windows on half", 2 * WINDOW - 1), ("windows wider than their pages", 2 * 69)],
)
def test_without_a_point_windows_are_replayed_and_nothing_else(name: str, replayed: int) -> None:
    family = FAMILIES[name]
    page, rig, draw = family.page, rig_of(family, family.ample), random.Random(3)
    prompt = draw_ids(draw, family, 3 * page)
    rig.send(prompt, 1, ignore_eos=True)
    rig.run()
    rig.residency.evictions.drop_points(swa_pages=rig.residency.swa.capacity)
    other = [*prompt[: 2 * page + 9], *draw_ids(draw, family, 5)]

    request = rig.send(other, 4, ignore_eos=True)
    rig.run()

    assert rig.cached(request) == 2 * page + 9 - replayed
    assert rig.replica.stats.counters["replayed_tokens"] == replayed
    assert [rig.tokens(request)] == cold(family, [other], 4)


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("window", [0, WINDOW])
def test_whatever_a_row_keeps_it_reads_its_own_prefix(window: int, has_state: bool) -> None:
    """The runner raises where a page, a window or a state is not that of a row's tokens."""
    spec = TreeSpec(16, 8, window=window, has_state=has_state)
    sizes = PoolSizes(10, 20 if window else 0, 9 if has_state else 0)
    rig = Rig(sizes, spec=spec, replay=20 if spec.has_points else None)
    draw, prompts = random.Random(1), list[list[int]]([[]])
    for _ in range(16):
        prompts.append([*draw.choice(prompts)[:60], *_random_run(draw)])
        rig.send(prompts[-1], 18)
        if draw.random() < 0.4:
            rig.run()
            rig.residency.evictions.drop_points(swa_pages=sizes.swa_pages, states=sizes.states)
    rig.run()

    counters = rig.replica.stats.counters
    assert counters["finished_requests"] == 16
    assert counters["cached_tokens"] > 0
    assert counters["retracted_requests"] > 0
    assert rig.residency.cache.evicted_pages > 0
    assert (counters["replayed_tokens"] > 0) == spec.has_points
    rig.assert_conserved()


def _random_run(draw: random.Random) -> list[int]:
    return [draw.randrange(2, 40) for _ in range(draw.randrange(1, 30))]
