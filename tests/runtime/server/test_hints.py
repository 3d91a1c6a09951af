"""Endpoints of other servers are answered 404 with what to use instead, in the caller's dialect."""

import pytest
from fastapi.routing import APIRoute

from runtime.server.hints import endpoint_hint
from tests.runtime.server.engine import Server, served

MISSING = """
/v1/responses/resp_1/cancel /v1/responses/resp_1/input_items /v1/embeddings /v1/rerank /v1/score
/start_expert_distribution_record /pause_generation /continue_generation /release_memory_occupation
/resume_memory_occupation /update_weights_from_disk /open_session /close_session
/set_internal_state /configure_logging /parse_function_call /separate_reasoning /invocations
/api/generate /vertex_generate /load /reset_prefix_cache /load_lora_adapter /encode /classify
/v1/files /v1/batches /v2/rerank /v1/realtime /weight_version /abort_requests
/send_weights_to_remote_instance /remote_instance_transfer_engine_info /tokenizer_info /pause
/inference/v1/generate /liveness /readiness /scale_elastic_ep /add_external_corpus /v1/moderations
"""
PATHS = tuple(MISSING.split())


@pytest.mark.parametrize("path", PATHS)
@served()
async def test_an_endpoint_that_people_call_is_answered_with_a_hint(
    server: Server, path: str
) -> None:
    reply = await server.post(path, {})

    assert reply.status_code == 404
    hint = endpoint_hint(path)
    assert hint is not None
    assert hint in reply.json()["error"]["message"]
    if path.startswith("/v1/"):
        assert reply.json()["error"]["code"] == "not_supported"


@served()
async def test_no_hint_hides_an_endpoint_that_is_here(server: Server) -> None:
    here = [route.path for route in server.app.routes if isinstance(route, APIRoute)]

    assert [path for path in here if endpoint_hint(path)] == []
    assert endpoint_hint("/nope") is None


@served()
async def test_a_hint_names_only_endpoints_that_are_here(server: Server) -> None:
    here = {route.path for route in server.app.routes if isinstance(route, APIRoute)}
    hints = [endpoint_hint(path) or "" for path in PATHS]
    named = {
        word.strip(":;,") for hint in hints for word in hint.split() if word.startswith("/")
    }  # fmt: skip

    assert "/v1/chat/completions" in named
    assert named <= here


@served()
async def test_an_endpoint_beside_one_that_is_here_has_its_hint_too(server: Server) -> None:
    path = "/v1/responses/compact"
    reply = await server.post(path, {})

    assert reply.status_code == 405
    assert reply.json()["error"]["message"].endswith(f"{path}: {endpoint_hint(path)}")
