"""What is known of a request when its reply has ended; nothing is recorded unasked."""

import logging
from typing import Any

import pytest

from runtime.config import ServerConfig
from runtime.server.metrics import Metrics
from tests.runtime.server.engine import Server, served

JSON = ServerConfig(model_path="m", served_model_name="tiny", log_format="json")
QUIET = ServerConfig(
    model_path="m", log_format="json", uvicorn_access_log_exclude_prefixes=("/health",)
)


def logged(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(r)["fields"] for r in caplog.records if r.name == "umbra.access"]


@served()
async def test_unless_it_is_asked_for_nothing_is_recorded(server: Server) -> None:
    names = [str(middleware.cls) for middleware in server.app.user_middleware]

    assert not any("RecordRequests" in name for name in names)
    assert isinstance(server.manager.observer, Metrics)
    assert not hasattr(server.app.state, "traces")


@served(JSON)
async def test_a_stream_is_logged_with_its_tokens_and_times(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "umbra.access"):
        body = {"text": "hi", "rid": "mine", "stream": True}
        await server.client.post("/generate?cache_salt=s", json=body)

    (fields,) = logged(caplog)
    assert 0 < fields.pop("ttft_s") <= fields.pop("duration_s")
    assert fields == {
        "rid": "mine",
        "client": "127.0.0.1:123",
        "method": "POST",
        "path": "/generate",
        "status": 200,
        "prompt_tokens": 2,
        "cached_tokens": 3,
        "output_tokens": 6,
        "finish_reasons": ["stop"],
    }


@served(JSON)
async def test_prompts_of_several_choices_count_once(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "umbra.access"):
        body = {"text": ["hi", "you"], "sampling_params": {"n": 2, "max_new_tokens": 2}}
        await server.client.post("/generate", json=body, headers={"X-Request-Id": "x-1"})

    (fields,) = logged(caplog)
    assert (fields["rid"], fields["prompt_tokens"], fields["output_tokens"]) == ("x-1", 5, 8)
    assert fields["ttft_s"] > 0.7  # by the scheduler, as no token was streamed
    assert fields["finish_reasons"] == ["length"] * 4


@served(JSON)
async def test_what_makes_no_call_has_no_tokens(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "umbra.access"):
        await server.client.get("/nope", headers={"X-Request-Id": "not plain"})
        await server.client.get("/health_generate")

    missing, probe = logged(caplog)
    assert (missing["status"], missing["rid"]) == (404, None)
    assert "prompt_tokens" not in missing
    assert "prompt_tokens" not in probe


@served(JSON)
async def test_metrics_hear_of_recorded_calls(server: Server) -> None:
    await server.client.post("/generate", json={"text": "hi", "stream": True})
    await server.client.post("/generate", json={"text": "x" * 400})

    told = (await server.client.get("/metrics")).text.splitlines()

    for line in (
        'sglang:time_to_first_token_seconds_count{model_name="tiny"} 1.0',
        'sglang:inter_token_latency_seconds_count{model_name="tiny"} 5.0',
        'umbra:choices_finished_total{model_name="tiny",reason="stop"} 1.0',
        'umbra:calls_refused_total{model_name="tiny",reason="PromptTooLong"} 1.0',
        'sglang:per_stage_req_latency_seconds_count{model_name="tiny",stage="tokenize"} 1.0',
    ):
        assert line in told


@served(QUIET)
async def test_paths_are_left_out_by_their_beginning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "umbra.access"):
        await server.client.get("/health")
        await server.client.get("/version")

    assert [fields["path"] for fields in logged(caplog)] == ["/version"]
