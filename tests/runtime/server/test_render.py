"""Tests of runtime.server.render: token ids of prompts, as routers read them."""

from typing import Any

import msgspec
import numpy as np
import pytest

from runtime.config import ServerConfig
from runtime.messages import pack_ids, unpack_ids
from runtime.server.render import _written
from tests.runtime.server.engine import CONTEXT_TOKENS, Server, served, tokenised

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}
KEYED = ServerConfig(model_path="/m", served_model_name="tiny", api_key="topsecret")
# The fields that vLLM's GenerateRequest has.
FIELDS = {
    "request_id", "token_ids", "assistant_tokens_mask", "token_offsets", "features",
    "sampling_params", "model", "stream", "stream_options", "cache_salt", "priority",
    "kv_transfer_params", "ec_transfer_params",
}  # fmt: skip


def sent(server: Server) -> list[list[int]]:
    """Return the prompts that the scheduler has got."""
    return [unpack_ids(request.input_ids).tolist() for request in server.engine.requests]


@pytest.mark.parametrize("prompt", ["hé", ["a", "bc"], [65, 66], [[65], [66, 67]]])
@served()
async def test_each_prompt_of_completions_is_rendered_as_it_would_be_sent(
    server: Server, prompt: Any
) -> None:
    rendered = (await server.post(f"{COMPLETIONS}/render", {"prompt": prompt})).json()
    assert not server.engine.requests
    await server.post(COMPLETIONS, {"prompt": prompt})

    # Prompts of one request are encoded side by side, and are sent as they are ready.
    assert sorted(one["token_ids"] for one in rendered) == sorted(sent(server))
    for one in rendered:
        assert set(one) == FIELDS
        assert one["request_id"].startswith("cmpl-")
        assert (one["model"], one["features"], one["stream"]) == ("tiny", None, False)


@pytest.mark.parametrize("more", [{}, TOOLS, {"reasoning_effort": "none"}, {"n": 3}])
@served(v4=True)
async def test_a_chat_is_rendered_as_it_would_be_sent(server: Server, more: Any) -> None:
    rendered = (await server.post(f"{CHAT}/render", {**HI, **more, "stream": True})).json()
    assert not server.engine.requests
    await server.post(CHAT, {**HI, **more})

    assert set(rendered) == FIELDS
    assert rendered["request_id"].startswith("chatcmpl-")
    assert rendered["stream"] is True
    assert rendered["token_ids"] == sent(server)[0]


@served()
async def test_a_template_renders_as_well(server: Server) -> None:
    rendered = (await server.post(f"{CHAT}/render", HI)).json()
    await server.post(CHAT, HI)

    assert rendered["token_ids"] == sent(server)[0]


@served()
async def test_what_is_asked_of_sampling_is_told_under_vllms_names(server: Server) -> None:
    body = {"prompt": "hi", "temperature": 0.5, "top_k": 3, "stop": ["x"], "min_tokens": 2}
    more = {"logit_bias": {"65": 1}, "seed": 7, "logprobs": 2, "cache_salt": "s", "priority": 3}

    [one] = (await server.post(f"{COMPLETIONS}/render", {**body, **more, "rid": "r"})).json()
    [plain] = (await server.post(f"{COMPLETIONS}/render", {"prompt": "hi"})).json()

    assert (one["request_id"], one["cache_salt"], one["priority"]) == ("r", "s", 3)
    wanted = {
        "temperature": 0.5, "top_k": 3, "stop": ["x"], "min_tokens": 2, "max_tokens": 16,
        "logit_bias": {"65": 1}, "seed": 7, "logprobs": 2, "n": 1,
    }  # fmt: skip
    assert {name: one["sampling_params"][name] for name in wanted} == wanted
    params = plain["sampling_params"]
    assert params["seed"] is params["logprobs"] is params["logit_bias"] is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": ""}),
        (COMPLETIONS, {"prompt": [-1]}),
        (COMPLETIONS, {"prompt": "hi", "model": "other"}),
        (COMPLETIONS, {"prompt": "hi", "temperature": -1}),
        (COMPLETIONS, {"prompt": "hi", "lora_path": "x"}),
        (COMPLETIONS, {"prompt": "x" * CONTEXT_TOKENS}),
        (COMPLETIONS, {"prompt": [65] * (CONTEXT_TOKENS + 1)}),
        (COMPLETIONS, {"prompt": "hi", "max_tokens": CONTEXT_TOKENS}),
        (COMPLETIONS, {"prompt": "hi", "n": 65}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [{"role": "nobody", "content": "x"}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * CONTEXT_TOKENS}]}),
        (CHAT, {**HI, "top_logprobs": 99, "logprobs": True}),
        (CHAT, {**HI, "priority": 1 << 40}),
        (CHAT, {**HI, "rid": ""}),
    ],
)
@served()
async def test_what_cannot_be_generated_is_refused_alike(
    server: Server, path: str, body: Any
) -> None:
    plain = await server.post(path, body)
    rendered = await server.post(f"{path}/render", body)

    assert plain.status_code in (400, 404)
    assert (rendered.status_code, rendered.json()) == (plain.status_code, plain.json())


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, {"prompt": "hi"}), (CHAT, HI)])
@served(KEYED)
async def test_the_key_is_asked_for(server: Server, path: str, body: Any) -> None:
    refused = await server.post(f"{path}/render", body)
    taken = await server.post(f"{path}/render", body, **{"x-api-key": "topsecret"})

    assert (refused.status_code, taken.status_code) == (401, 200)


@served()
async def test_a_server_that_stops_renders_nothing(server: Server) -> None:
    server.manager.draining = True

    for path, body in ((COMPLETIONS, {"prompt": "hi"}), (CHAT, HI)):
        plain, rendered = await server.post(path, body), await server.post(f"{path}/render", body)
        assert rendered.status_code == 503
        assert rendered.json() == plain.json()


@served()
async def test_a_prompt_becomes_ids_outside_of_the_event_loop(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tokenised(server, monkeypatch)
    await server.post(f"{COMPLETIONS}/render", {"prompt": ["abc", "de"]})

    assert seen == [3, 2]


@pytest.mark.parametrize("count", [1, 1 << 16, (1 << 16) + 1, 200_000])
def test_many_ids_are_written_in_parts(count: int) -> None:
    ids = np.arange(count) * 7

    assert msgspec.json.decode(msgspec.json.encode(_written(pack_ids(ids)))) == ids.tolist()
