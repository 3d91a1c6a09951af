"""Tests of runtime.server.score_run: what is asked of the engine, and what is made of it."""

import pytest

from runtime.config import ServerConfig
from runtime.errors import RequestFailed
from runtime.messages import Generate, TokenLogprobs
from runtime.server.score_plan import ScorePlan
from runtime.server.score_run import ScoreRun
from runtime.tokenizer.stream import Bundle
from tests.runtime.server import engine
from tests.runtime.server.engine import Server, served

PREFIX = [7, 8]
Monkey = pytest.MonkeyPatch


def plan(*choices: tuple[int, ...]) -> ScorePlan:
    return ScorePlan(PREFIX, list(choices))


def run(server: Server) -> ScoreRun:
    return ScoreRun(server.manager, Bundle(), namespace="n", priority=2)


@served()
async def test_every_beginning_of_every_choice_has_a_value(server: Server) -> None:
    values = await run(server).conditional(plan((1, 2, 3), (1, 4)))

    assert set(values) == {(1,), (1, 2), (1, 2, 3), (1, 4)}
    assert {(r.namespace, r.priority) for r in server.engine.requests} == {("n", 2)}


@served()
async def test_single_tokens_need_the_prompt_alone(server: Server) -> None:
    await run(server).conditional(plan((1,), (2,)))

    assert len(server.engine.requests) == 1


@served()
async def test_equal_choices_are_computed_once(server: Server) -> None:
    await run(server).conditional(plan((1, 2), (1, 2)))

    assert len(server.engine.requests) == 2


@served()
async def test_choices_by_themselves_are_without_the_prompt(server: Server) -> None:
    alone = await run(server).unconditional(plan((1,), (2, 3)))

    assert alone == {(1,): [], (2, 3): [-1.5]}
    assert [len(r.input_ids) // 4 for r in server.engine.requests] == [2]


@served()
async def test_long_prompts_are_scored_in_waves(server: Server, monkeypatch: Monkey) -> None:
    choices = plan((1, 2), (3, 4), (5, 6))
    at_once = await run(server).conditional(choices)
    monkeypatch.setattr("runtime.server.score_run.WAVE_TOKENS", 1)

    in_waves = await run(server).conditional(choices)

    assert in_waves == at_once
    assert len(server.engine.requests) == 8


@served(ServerConfig(max_running_requests=2, max_queued_requests=1))
async def test_a_score_of_many_choices_fits_a_short_queue(server: Server) -> None:
    values = await run(server).conditional(plan(*((k, 9) for k in range(20))))

    assert len(values) == 40


@pytest.mark.parametrize("choice", [(1,), (1, 2)])
@served()
async def test_a_model_without_finite_numbers_fails_the_score(
    server: Server, monkeypatch: Monkey, choice: tuple[int, ...]
) -> None:
    def broken(request: Generate, ids: list[int], value: float) -> TokenLogprobs:
        """Say nothing of the prompt, and of first tokens only where a second one follows."""
        asked = request.logprobs.token_ids if request.logprobs else ()
        tells = request.sampling.max_new_tokens == 1 and len(choice) > 1
        picked = [[(value, t) for t in asked] for _ in ids] if tells else []
        return TokenLogprobs([None] * len(ids), ids, [], picked)

    monkeypatch.setattr(engine, "_logprobs", broken)

    with pytest.raises(RequestFailed, match="no finite"):
        await run(server).conditional(plan(choice))
