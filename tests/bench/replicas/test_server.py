"""A simulated server takes the time that its model says, and caches what a real one does."""

import numpy as np
import pytest

from tests.bench.replicas.server import Job, Server, cache_of
from tests.bench.replicas.step_model import StepModel
from tests.bench.replicas.trace import Call

RATE = 10_000.0


def job(number: int, prompt: int, output: int = 1, *, seed: int | None = None) -> Job:
    draw = np.random.default_rng(number if seed is None else seed)
    tokens = draw.integers(1 << 30, size=prompt + output).astype(np.int32)
    return Job(Call(number, 0.0, prompt, output, lambda: tokens), 0.0, tokens)


class Rig:
    """A server, and what it called."""

    def __init__(self, tokens: int = 200_000, rows: int = 8) -> None:
        self.told: list[tuple[str, int]] = []
        self.server = Server(
            cache_of(tokens, rows),
            StepModel(RATE, rows=rows),
            answered=lambda _, job: self.told.append(("answered", job.call.number)),
            ended=lambda _, job: self.told.append(("ended", job.call.number)),
        )

    def run(self, until_s: float = float("inf")) -> None:
        while (step := self.server.step) is not None and step.end_s <= until_s:
            self.server.step_ended()


def test_a_prompt_takes_its_tokens_at_the_rate_of_prefill() -> None:
    rig, one = Rig(), job(1, 7000)
    rig.server.submit(one, 2.0)
    rig.run()

    assert one.first_s == one.ended_s == pytest.approx(2.7)
    assert rig.told == [("answered", 1), ("ended", 1)]
    assert rig.server.cache.residency.rows_used == 0


def test_prompts_are_computed_in_their_order_and_pages_are_reused() -> None:
    rig = Rig()
    first, same, third = job(1, 5000), job(2, 5000, seed=1), job(3, 1000)
    prompt = first.tokens[:5000]
    for one in (first, same, third):
        rig.server.submit(one, 0.0)
    rig.run()

    assert first.first_s == pytest.approx(0.5, rel=0.3)
    assert first.first_s <= same.first_s <= third.first_s
    assert (first.cached, third.cached) == (0, 0)
    assert same.cached >= 4864
    assert rig.server.cached(prompt) == 4864
    assert rig.server.cached(prompt[::-1]) == 0
    assert third.ended_s == pytest.approx((11_000 - same.cached) / RATE)


def test_answers_are_decoded_beside_each_other_and_prompts_slow_them() -> None:
    model = StepModel(RATE)
    alone, both = model.decode_s(1), model.decode_s(2)
    assert 0 < alone < both < model.decode_s(16) < model.decode_s(200)
    rig, long = Rig(), job(1, 1000, 101)
    rig.server.submit(long, 0.0)
    rig.run(until_s=0.2)
    late = job(2, 2000, 11)
    began = long.first_s + 10.5 * alone
    rig.server.submit(late, began)
    rig.run()

    # It waits for the end of the step that runs, and its prompt takes a step with the other row.
    start = long.first_s + 11 * alone
    assert late.first_s == pytest.approx(start + 0.2 + alone)
    assert late.ended_s == pytest.approx(late.first_s + 10 * both)
    assert long.ended_s == pytest.approx(late.ended_s + (100 - 11 - 1 - 10) * alone)


def test_what_waits_is_reported_in_tokens_that_are_not_cached() -> None:
    rig = Rig()
    rig.server.submit(job(1, 4096), 0.0)
    rig.run()
    running, waiting = job(2, 10_000), job(3, 4096, seed=1)
    rig.server.submit(running, 5.0)
    rig.server.submit(waiting, 5.0)

    assert rig.server.running == 2
    assert 256 <= rig.server.waiting_tokens - (10_000 - 2048) <= 512


def test_a_request_waits_for_a_row_and_for_room() -> None:
    rows = Rig(rows=2)
    for number in range(5):
        rows.server.submit(job(number, 300, 40), 0.0)
    rows.run()
    assert [what for what, _ in rows.told].count("ended") == 5

    small = Rig(tokens=60_000)
    jobs = [job(number, 30_000, 3000) for number in range(3)]
    for one in jobs:
        small.server.submit(one, 0.0)
    small.run()
    assert all(one.ended_s > 0 for one in jobs)
    assert jobs[2].first_s > jobs[0].ended_s

    with pytest.raises(ValueError, match="larger than the whole cache"):
        small.server.submit(job(9, 120_000), 1e6)
