"""A beginning that requests share is computed once, also where the second comes a step too late."""

import random

import pytest

from mem_cache.spec import PoolSizes, TreeSpec
from mem_cache.tree.handles import PointKind
from runtime.scheduler.request import Status
from runtime.scheduler.resume_policy import ResumePolicy
from runtime.scheduler.waypoints import MOST_OF_A_PROMPT
from tests.testing.scheduler_rig import Rig
from tests.testing.token_runner import expected_output

VOCAB = 50
# Pages of 8 tokens and a waypoint every 64: the benchmark's 8,192 + 1,024 tokens by 32.
SPEC = TreeSpec(8, 4, 8)
AMPLE = PoolSizes(full_pages=600, swa_pages=1400, states=640)
EVERY = 64

both_ways = pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])


def prompt_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(40), k=length)


def sharing(shared: list[int], seed: int, own: int) -> list[int]:
    """Return a prompt that begins with `shared` and with nothing more of any other."""
    return [*shared, 40 + seed, *prompt_of(1000 + seed, own - 1)]


def rig_with(
    *, every: int = EVERY, least: int = 64, sizes: PoolSizes = AMPLE, **options: object
) -> Rig:
    return Rig(
        sizes,
        spec=SPEC,
        resume=ResumePolicy(page_end=False, branch_min_tokens=least, waypoint_tokens=every),
        **options,  # pyright: ignore[reportArgumentType]
    )


def arrive(rig: Rig, prompts: list[list[int]], gap: int, new: int = 5) -> list[int]:
    """Send prompts, so many turns apart, and run everything."""
    requests: list[int] = []
    for prompt in prompts:
        requests.append(rig.send(prompt, new))
        for _ in range(gap):
            rig.scheduler.turn()
    rig.run()
    return requests


@both_ways
@pytest.mark.parametrize("chunk", [8, 256, 512, -1])
@pytest.mark.parametrize("gap", [0, 1, 2])
def test_a_shared_beginning_is_computed_once(overlap: bool, chunk: int, gap: int) -> None:
    shared = prompt_of(1, 256)
    prompts = [sharing(shared, k, 32) for k in range(6)]
    rig = rig_with(chunk=chunk, overlap=overlap, rows=8)
    requests = arrive(rig, prompts, gap)

    assert [rig.cached(r) for r in requests] == [0, *[256] * 5]
    for request, prompt in zip(requests, prompts, strict=True):
        assert rig.tokens(request) == expected_output(prompt, 5, VOCAB)
    rig.assert_conserved()


@pytest.mark.parametrize("chunk", [8192, 16384])
def test_a_system_prompt_of_the_usual_size_is_computed_once(chunk: int) -> None:
    shared = prompt_of(2, 8192)
    sizes = PoolSizes(full_pages=200, swa_pages=400, states=240)
    rig = Rig(sizes, spec=TreeSpec(), chunk=chunk, overlap=True)
    requests = arrive(rig, [sharing(shared, k, 1024) for k in range(3)], gap=1)

    assert [rig.cached(r) for r in requests] == [0, 8192, 8192]
    rig.assert_conserved()


@both_ways
@pytest.mark.parametrize("shared_tokens", [70, 150, 205, 255])
def test_where_no_waypoint_stands_one_request_computes_the_rest_and_no_other(
    overlap: bool, shared_tokens: int
) -> None:
    shared = prompt_of(3, shared_tokens)
    rig = rig_with(least=6, chunk=512, overlap=overlap, rows=8)
    requests = arrive(rig, [sharing(shared, k, 60) for k in range(5)], gap=1)

    last = shared_tokens // EVERY * EVERY
    assert [rig.cached(r) for r in requests] == [0, last, *[shared_tokens] * 3]
    rig.assert_conserved()


def test_of_the_waypoints_of_several_rows_the_last_one_is_started_from() -> None:
    shared = prompt_of(6, 256)
    rig = rig_with(every=16, chunk=512, rows=8, policy="fcfs")
    # Too little is common to both for one to wait for the other.
    running = [rig.send(sharing(shared, 0, 32), 40), rig.send(sharing(shared[:48], 1, 32), 40)]
    rig.turn_until(lambda: all(rig.tokens(r) for r in running))
    request = rig.send(sharing(shared, 2, 32), 2)
    rig.run()

    assert rig.cached(request) == 240
    rig.assert_conserved()


def test_who_waits_for_a_step_in_flight_leaves_the_next_one_to_others() -> None:
    shared = prompt_of(4, 256)
    rig = rig_with(chunk=512, overlap=True, rows=8)
    rig.send(sharing(shared, 0, 400), 5)
    rig.scheduler.turn()
    second, other = rig.send(sharing(shared, 1, 20), 5), rig.send(prompt_of(5, 200), 5)
    rig.scheduler.turn()

    assert rig.request(second).status is Status.WAITING
    assert rig.request(other).status is Status.PREFILL
    assert rig.plans[-1].chunk_len.tolist() == [144, 200]
    rig.turn_until(lambda: rig.request(second).status is Status.PREFILL, turns=1)
    rig.run()
    assert rig.cached(second) == 256
    rig.assert_conserved()


@both_ways
def test_waypoints_at_growing_distances_enter_the_tree_when_their_request_ends(
    overlap: bool,
) -> None:
    prompts = [prompt_of(6, 300), prompt_of(7, 200)]
    rig = rig_with(chunk=100, overlap=overlap)
    first, second = (rig.send(prompt, 5) for prompt in prompts)
    rig.turn_until(lambda: bool(rig.tokens(first)) and bool(rig.tokens(second)))
    assert _positions_of_kind(rig, PointKind.WAYPOINT) == []
    rig.run()

    # 44, 108 and 236 tokens before the end of 300; 8 and 72 before that of 200.
    assert _positions_of_kind(rig, PointKind.WAYPOINT) == [64, 128, 192, 192, 256]
    others = [*prompts[0][:290], 45, 46], [*prompts[1][:195], 45, 46]
    again = [rig.send(prompt, 1) for prompt in others]
    rig.run()
    assert [rig.cached(r) for r in again] == [256, 192]
    rig.assert_conserved()


def _positions_of_kind(rig: Rig, kind: PointKind) -> list[int]:
    spans, _ = rig.residency.cache.spans(limit=100)
    return sorted(p.position for span in spans for p in span.points if p.kind == kind)


def test_a_waypoint_that_was_used_stays_when_its_request_ends() -> None:
    shared = prompt_of(8, 256)
    rig = rig_with(chunk=512, overlap=True)
    first = rig.send(sharing(shared, 0, 30), 90)
    rig.scheduler.turn()
    rig.scheduler.turn()
    second = rig.send(sharing(shared, 1, 30), 5)
    rig.turn_until(lambda: bool(rig.tokens(second)))
    assert [p.position for p in rig.request(first).holding.waypoints] == [64, 128, 192]
    rig.run()

    third = rig.send(sharing(shared, 2, 30), 5)
    rig.run()
    assert [rig.cached(second), rig.cached(third)] == [256, 256]
    rig.assert_conserved()


def test_of_all_waypoints_before_it_a_request_starts_at_the_last() -> None:
    shared = prompt_of(8, 256)
    rig = rig_with(chunk=512, overlap=True)
    longer = sharing(shared, 1, 200)
    for prompt in (sharing(shared, 0, 30), longer):
        first = rig.send(prompt, 90)
        rig.turn_until(lambda sent=first: bool(rig.tokens(sent)))
    rig.residency.cache.evict_swa(states=AMPLE.states)
    request = rig.send([*longer[:400], 45, 46], 5)
    rig.run()

    assert rig.cached(request) == 384
    rig.assert_conserved()


@both_ways
def test_whoever_waits_for_a_waypoint_goes_on_when_the_other_is_aborted(overlap: bool) -> None:
    shared = prompt_of(9, 256)
    rig = rig_with(chunk=320, overlap=overlap)
    first = rig.send(sharing(shared, 0, 300), 5)
    rig.scheduler.turn()
    second, third = (rig.send(sharing(shared, k, 20), 5) for k in (1, 2))
    rig.scheduler.turn()
    rig.abort(first)
    rig.run()

    # With overlap the abort comes before another request could start at the waypoint at 256, and
    # of those that stay the one at 64 is the nearest.
    assert [rig.cached(second), rig.cached(third)] == [64 if overlap else 256, 256]
    rig.assert_conserved()


def test_namespaces_share_no_waypoints() -> None:
    shared = prompt_of(10, 256)
    rig = rig_with(chunk=512, overlap=True)
    rig.send(sharing(shared, 0, 30), 20, namespace="a")
    rig.scheduler.turn()
    other = rig.send(sharing(shared, 1, 30), 5, namespace="b")
    rig.run()

    assert rig.cached(other) == 0
    rig.assert_conserved()


def test_waypoints_hold_a_share_of_the_rings_and_the_oldest_go_first() -> None:
    rig = rig_with(sizes=PoolSizes(600, 900, 192), chunk=512, overlap=True, rows=4)
    first, second = rig.send(prompt_of(11, 270), 60), rig.send(prompt_of(12, 200), 60)
    rig.turn_until(lambda: bool(rig.tokens(second)))

    held = [len(rig.request(r).holding.waypoints) for r in (first, second)]
    assert held == [0, 3]  # 6 at most: 4 and 3 are too many
    assert rig.residency.points.states_held == 3
    rig.run()
    rig.assert_conserved()


def test_where_no_units_can_be_had_a_prompt_leaves_none_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = rig_with(chunk=512, rows=4)
    monkeypatch.setattr(rig.residency.points, "take", lambda *_, **__: None)
    request = rig.send(prompt_of(18, 300), 9)
    rig.turn_until(lambda: bool(rig.tokens(request)))
    assert rig.request(request).holding.waypoints == []
    rig.run()

    assert rig.tokens(request) == expected_output(prompt_of(18, 300), 9, VOCAB)
    rig.assert_conserved()


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (0, 63, []),
        (0, 64, [64]),
        (0, 128, [64, 128]),
        (64, 127, []),
        (64, 191, [128]),
        (192, 300, [256]),
    ],
)
def test_a_chunk_leaves_the_waypoints_behind_its_own_tokens(
    start: int, end: int, wanted: list[int]
) -> None:
    rig = rig_with(chunk=8)
    request = rig.send(prompt_of(19, 320), 1)
    rig.scheduler.turn()

    saves = rig.residency.waypoints.leave(rig.request(request), start, end)
    assert [save.position for save in saves] == wanted


def test_a_prompt_with_more_waypoints_than_the_share_keeps_its_first_ones() -> None:
    rig = rig_with(sizes=PoolSizes(600, 900, 192), chunk=64, rows=4)
    request = rig.send(prompt_of(18, 600), 9)
    rig.turn_until(lambda: bool(rig.tokens(request)))

    positions = [p.position for p in rig.request(request).holding.waypoints]
    assert positions == list(range(64, 400, 64))
    rig.run()
    rig.assert_conserved()


def test_small_pools_and_those_that_reuse_nothing_have_no_waypoints() -> None:
    small = PoolSizes(full_pages=100, swa_pages=100, states=24)
    for rig in (rig_with(chunk=512, sizes=small, rows=13), rig_with(chunk=512, reuse=False)):
        request = rig.send(prompt_of(13, 270), 9)
        while not rig.tokens(request):
            rig.scheduler.turn()
        assert rig.request(request).holding.waypoints == []
        rig.run()
        rig.assert_conserved()


def test_a_long_prompt_has_its_waypoints_further_apart() -> None:
    rig = rig_with(every=8, chunk=128)
    request = rig.send(prompt_of(14, 400), 9)
    rig.turn_until(lambda: bool(rig.tokens(request)))

    positions = [p.position for p in rig.request(request).holding.waypoints]
    assert positions == list(range(32, 400, 32))
    assert len(positions) <= MOST_OF_A_PROMPT
    rig.run()
    rig.assert_conserved()


def test_a_replay_leaves_none_before_it_is_exact() -> None:
    prompt = prompt_of(15, 256)
    rig = rig_with(chunk=512, replay=100)
    arrive(rig, [prompt], gap=0)
    rig.residency.cache.evict_swa(states=AMPLE.states)
    again = rig.send([*prompt, *prompt_of(16, 150)], 9)
    rig.turn_until(lambda: bool(rig.tokens(again)))

    assert [p.position for p in rig.request(again).holding.waypoints] == [320, 384]
    rig.run()
    rig.assert_conserved()


def test_nothing_of_a_failed_row_can_be_started_from() -> None:
    prompt, shared = prompt_of(17, 280), prompt_of(17, 256)
    [bad] = expected_output(prompt, 1, VOCAB)
    rig = rig_with(chunk=512, overlap=True)
    rig.runner.fail_tokens = {bad}
    first = rig.send(prompt, 5)
    rig.scheduler.turn()
    second = rig.send(sharing(shared, 1, 20), 1)
    rig.run()

    assert rig.outputs(first)[-1].finish == "error"
    assert rig.cached(second) == 0
    rig.assert_conserved()


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40)]


@both_ways
@pytest.mark.parametrize("seed", [*range(4), *SLOW])
def test_random_prompts_that_share_beginnings_read_what_is_theirs(overlap: bool, seed: int) -> None:
    """The token runner checks every read; arrivals, aborts and the pools vary."""
    draw = random.Random(seed)
    replay = draw.choice([None, None, 2 * SPEC.window])
    sizes = PoolSizes(draw.randint(60, 200), draw.randint(60, 200), draw.randint(64, 180))
    chunk, rows = draw.choice([16, 40, 100, -1]), draw.randint(2, 6)
    rig = rig_with(every=8, sizes=sizes, chunk=chunk, rows=rows, replay=replay, overlap=overlap)
    texts = [draw.choices(range(VOCAB), k=draw.randint(60, 160)) for _ in range(3)]
    sent: dict[int, tuple[list[int], int]] = {}
    aborted: set[int] = set()
    while len(sent) < 40:
        base = draw.choice(texts)
        prompt = [*base[: draw.randint(1, len(base))], *draw.choices(range(VOCAB), k=9)]
        new = draw.randint(1, 30)
        sent[rig.send(prompt, new)] = prompt, new
        texts.append([*prompt, *expected_output(prompt, new, VOCAB)][:200])
        for _ in range(draw.randint(0, 6)):
            rig.scheduler.turn()
        if draw.random() < 0.1:
            aborted.add(draw.choice(list(sent)))
            rig.abort(*aborted)
    rig.run()

    for request, (prompt, new) in sent.items():
        tokens = rig.tokens(request)
        assert tokens == expected_output(prompt, len(tokens), VOCAB)
        assert len(tokens) == new or request in aborted
    rig.assert_conserved()


@pytest.mark.parametrize(
    ("sizes", "every", "tells"),
    [
        (AMPLE, EVERY, ""),
        (PoolSizes(full_pages=600, swa_pages=900, states=31), EVERY, "there are at most 31"),
        (PoolSizes(full_pages=600, swa_pages=900, states=31), 0, ""),
        (PoolSizes(full_pages=600, swa_pages=32, states=640), EVERY, "beside 32 SWA pages and 16"),
    ],
)
def test_pools_without_room_for_any_say_so(
    sizes: PoolSizes, every: int, tells: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig_with(sizes=sizes, every=every, rows=8)

    assert ("prompts leave no resume points" in caplog.text) == bool(tells)
    assert tells in caplog.text
