"""Tests of runtime.server.errors: every failure in the caller's dialect."""

import asyncio
import json

import pytest

from runtime.errors import Aborted, BadRequest, QueueFull, RequestError, Unavailable
from runtime.server.errors import error_body
from tests.runtime.server.engine import Server, served

NATIVE, OPENAI = "/generate", "/v1/completions"
ANTHROPIC = {"anthropic-version": "2023-06-01"}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/nope", 404),
        ("GET", "/v1/", 404),
        ("GET", "/generate", 405),
        ("DELETE", "/v1/completions", 405),
        ("GET", "/generate/", 404),
    ],
)
@served()
async def test_unknown_paths_and_methods_speak_the_dialect(
    server: Server, method: str, path: str, status: int
) -> None:
    reply = await server.client.request(method, path)

    assert reply.status_code == status
    keys = {"message", "type", "param", "code"} if path.startswith("/v1") else {"message"}
    assert set(reply.json()["error"]) == keys
    assert status != 405 or reply.headers["allow"]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "kind"),
    [
        ("GET", "/v1/messages", {}, 405, "invalid_request_error"),
        ("GET", "/v1/messages/batches", {}, 404, "not_found_error"),
        ("GET", "/v1/models/nope", ANTHROPIC, 404, "not_found_error"),
        ("POST", "/v1/messages", {"content-length": str(1 << 30)}, 413, "request_too_large"),
    ],
)
@served()
async def test_anthropics_clients_get_errors_in_their_shape(
    server: Server, method: str, path: str, headers: dict[str, str], status: int, kind: str
) -> None:
    headers = {"content-type": "application/json", **headers}

    reply = await server.client.request(method, path, headers=headers, content=b"")

    assert reply.status_code == status
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == kind
    assert reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Unavailable("x"), "overloaded_error"),
        (RequestError("x"), "api_error"),
        (Aborted("x"), "api_error"),
        (BadRequest("x"), "invalid_request_error"),
    ],
)
def test_every_failure_has_a_type_that_anthropics_clients_know(
    error: RequestError, kind: str
) -> None:
    assert error_body(error, "anthropic") == {
        "type": "error",
        "error": {"type": kind, "message": "x"},
    }


def test_a_code_tells_anthropics_clients_what_to_do_instead() -> None:
    body = error_body(BadRequest("x", code="thread_unsupported_request"), "anthropic")

    assert body["error"]["details"] == {"error_code": "thread_unsupported_request"}


@served()
async def test_a_full_queue_says_when_to_come_back(server: Server) -> None:
    server.engine.refuse = "queue_full"
    for path, body in ((NATIVE, {"text": "x"}), (OPENAI, {"prompt": "x"})):
        for stream in (False, True):
            reply = await server.post(path, {**body, "stream": stream})
            assert reply.status_code == 429
            assert int(reply.headers["retry-after"]) >= 1

    assert reply.json()["error"] == {
        "message": "no room",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }


@served()
async def test_a_prompt_that_never_fits_is_a_400_even_when_streaming(server: Server) -> None:
    for path, body in ((NATIVE, {"text": "x" * 400}), (OPENAI, {"prompt": "x" * 400})):
        for stream in (False, True):
            reply = await server.post(path, {**body, "stream": stream})
            assert reply.status_code == 400

    assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert not server.engine.requests


@served()
async def test_a_draining_server_is_unavailable(server: Server) -> None:
    server.manager.draining = True

    reply = await server.post(OPENAI, {"prompt": "x"})

    assert reply.status_code == Unavailable.status
    assert reply.json()["error"]["type"] == "service_unavailable"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/generate", "service_unavailable"),
        ("/v1/chat/completions", "service_unavailable"),
        ("/v1/messages", "overloaded_error"),
    ],
)
@served(v4=True)
async def test_whom_the_end_of_the_server_cuts_off_hears_of_it(
    server: Server, path: str, kind: str, stream: bool
) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "model": "default", "max_tokens": 9}
    asked = {"text": "x"} if path == NATIVE else asked
    server.engine.hold.clear()
    asking = asyncio.create_task(server.post(path, {**asked, "stream": stream}))
    while not server.engine.requests:
        await asyncio.sleep(0.001)

    assert await server.manager.drain(0.01) == 1
    reply = await asking

    assert reply.status_code == (200 if stream else 503)
    told = reply.text.rstrip().removesuffix("data: [DONE]").rstrip().rpartition("data: ")[2]
    error = json.loads(told)["error"]
    assert error["message"] == "the server is shutting down"
    assert error.get("type", kind) == kind
    assert '"abort"' not in reply.text


@served()
async def test_a_request_that_fails_in_the_engine_is_a_500(server: Server) -> None:
    server.engine.fail = "bad logits"

    reply = await server.post(NATIVE, {"text": "x", "sampling_params": {"stop": "zzz"}})

    assert reply.status_code == 500
    assert reply.json() == {"error": {"message": "bad logits"}}


@pytest.mark.parametrize("path", [NATIVE, OPENAI])
@served()
async def test_a_stream_that_breaks_ends_with_an_error_and_done(server: Server, path: str) -> None:
    server.engine.fail = "bad logits"

    *said, error, done = await server.events(path, {"text": "x", "prompt": "x"})

    assert said
    assert error["error"]["message"] == "bad logits"
    assert error["error"]["type"] == "internal_error"
    assert done == "[DONE]"


@served()
async def test_a_fault_of_ours_tells_nothing_of_the_inside(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(call: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(server.manager, "generate", broken)

    reply = await server.post(OPENAI, {"prompt": "x"})

    assert reply.status_code == 500
    assert "secret" not in reply.text
    assert reply.json()["error"]["type"] == RequestError.kind


def test_retry_after_is_of_the_error_itself() -> None:
    assert QueueFull("full", retry_after_s=7).retry_after_s == 7
