"""What a body of /start_profile asks the scheduler for, and how its answer is told."""

from typing import Any

import pytest

from runtime.profile_messages import StartProfile
from tests.runtime.server.engine import Server, served


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({}, StartProfile(0)),
        (
            {"num_steps": 5, "activities": ["GPU"], "output_dir": "a/b", "start_step": 9},
            StartProfile(0, "a/b", 9, 5, cpu=False),
        ),
        (
            {"activities": ["CPU"], "with_stack": True, "record_shapes": True},
            StartProfile(0, gpu=False, stacks=True, shapes=True),
        ),
        # As SGLang's benchmark sends it.
        ({"activities": [], "num_steps": None, "profile_by_stage": False}, StartProfile(0)),
    ],
)
@served()
async def test_a_body_is_a_question(
    server: Server, body: dict[str, Any], asked: StartProfile
) -> None:
    reply = await server.post("/start_profile", body)

    assert reply.status_code == 200
    assert reply.json() == {
        "message": "tracing",
        "file": "/traces/x",
        "files": ["/traces/x"],
    }
    [got] = server.engine.profiles
    assert got.call_id != 0
    assert (got.folder, got.first_step, got.steps) == (asked.folder, asked.first_step, asked.steps)
    flags = ("cpu", "gpu", "stacks", "shapes")
    assert [getattr(got, name) for name in flags] == [getattr(asked, name) for name in flags]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 100_000}, "num_steps"),
        ({"start_step": -1}, "start_step"),
        ({"activities": ["MEM"]}, "activities"),
        ({"output_dir": 5}, "output_dir"),
        ({"profile_by_stage": True}, "tells its phase"),
        ({"merge_profiles": True}, "each rank writes a trace"),
    ],
)
@served()
async def test_a_bad_body_asks_nothing(server: Server, body: dict[str, Any], words: str) -> None:
    reply = await server.post("/start_profile", body)

    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert server.engine.profiles == []


@served()
async def test_a_stop_needs_no_body_and_tells_why_not(server: Server) -> None:
    refused = await server.client.post("/stop_profile")
    await server.post("/start_profile", {})
    stopped = await server.client.post("/stop_profile")

    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "nothing was stopped: none is running"
    assert (stopped.status_code, stopped.json()) == (
        200,
        {"message": "", "file": None, "files": []},
    )
    assert (await server.client.get("/start_profile")).status_code == 405
