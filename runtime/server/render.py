"""`/v1/completions/render` and `/v1/chat/completions/render`: token ids of prompts, for routers.

Bodies, checks and errors are those of the paths without `/render`; only grammars are not compiled,
as nothing is sent to the scheduler. The reply to a chat is vLLM's `GenerateRequest`, to completions
a list with one for each prompt. Routers (llm-d's token-producer, vLLM's router, Dynamo's endpoint
picker) read its `token_ids`, and `features`, which text does not have.

Source: vLLM, `vllm/entrypoints/scale_out/{render/serving,token_in_token_out/protocol}.py`; the docs
of vLLM 0.32 still name `GenerateRequest.token_ids` of `/render`. Which optional fields there are
differs by version; here they are those of its development branch. Up to 0.17 the replies were
lists of engine prompts, with a chat's conversation before them.
"""

import uuid
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from runtime.errors import Unavailable
from runtime.messages import Generate
from runtime.sampling import SamplingSpec
from runtime.server.body import read_body
from runtime.server.chat import Chats
from runtime.server.chat_schema import ChatBody
from runtime.server.completions import CompletionRoutes
from runtime.server.openai_schema import CommonBody, CompletionBody
from runtime.server.replies import json_reply, until_disconnect
from runtime.server.service import Service
from runtime.tokenizer.call import GenerateCall, make_requests, pack_prompt

# Ids of which an array is made and written at once: both hold the interpreter.
_IDS_AT_ONCE = 1 << 16


class RenderRoutes:
    """Handlers of the two paths."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._chats = Chats(service)
        self._completions = CompletionRoutes(service)

    async def completions(self, request: Request) -> Response:
        """Return the token ids of each prompt."""
        body = await read_body(request, CompletionBody)
        plan = await self._completions.plan(body)
        return json_reply(await until_disconnect(request, self._all("cmpl", body, plan.calls)))

    async def chat(self, request: Request) -> Response:
        """Return the token ids of a conversation's prompt."""
        body = await read_body(request, ChatBody)
        plan = await self._chats.plan(body)
        [rendered] = await until_disconnect(request, self._all("chatcmpl", body, [plan.call]))
        return json_reply(rendered)

    async def _all(
        self, prefix: str, body: CommonBody, calls: list[GenerateCall]
    ) -> list[dict[str, Any]]:
        manager = self._service.manager
        if manager.draining or manager.dead is not None:
            raise Unavailable("the server is shutting down")
        # One after the other: of many long prompts each lets others have the thread.
        return [await self._one(prefix, body, call) for call in calls]

    async def _one(self, prefix: str, body: CommonBody, call: GenerateCall) -> dict[str, Any]:
        manager, service = self._service.manager, self._service

        def work() -> tuple[Generate, msgspec.Raw]:
            prompt = pack_prompt(call, manager.tokenizer, manager.limits)
            choices = make_requests(call, prompt, manager.limits, seed=0, ids=repeat(0))
            return choices[0], _written(prompt)

        sent, token_ids = await manager.in_thread(work, chars=len(call.text or ""))
        return {
            "request_id": body.rid or f"{prefix}-{uuid.uuid4().hex}",
            "token_ids": token_ids,
            "assistant_tokens_mask": None,
            "token_offsets": None,
            "features": None,
            "sampling_params": _sampling(call.sampling, sent),
            "model": body.model or service.model_name,
            "stream": bool(body.stream),
            "stream_options": body.stream_options if body.stream else None,
            "cache_salt": body.cache_salt,
            "priority": call.priority,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
        }


def _written(prompt: bytes) -> msgspec.Raw:
    """Return little-endian int32 as a JSON list."""
    ids = np.frombuffer(prompt, "<i4")
    starts = range(0, len(ids), _IDS_AT_ONCE)
    parts = (msgspec.json.encode(ids[at : at + _IDS_AT_ONCE].tolist()) for at in starts)
    return msgspec.Raw(b"[" + b",".join(part[1:-1] for part in parts) + b"]")


def _sampling(spec: SamplingSpec, sent: Generate) -> dict[str, Any]:
    """Return what is asked of sampling under vLLM's names; grammars are left out."""
    asked = sent.logprobs
    return {
        "n": spec.n,
        "temperature": spec.temperature,
        "top_p": spec.top_p,
        "top_k": spec.top_k,
        "min_p": spec.min_p,
        "presence_penalty": spec.presence_penalty,
        "frequency_penalty": spec.frequency_penalty,
        "repetition_penalty": spec.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in spec.logit_bias.items()} or None,
        "seed": spec.seed,
        "stop": list(spec.stop),
        "stop_token_ids": list(spec.stop_token_ids),
        "ignore_eos": spec.ignore_eos,
        "max_tokens": sent.sampling.max_new_tokens,
        "min_tokens": spec.min_new_tokens,
        "logprobs": None if asked is None else asked.top,
        "skip_special_tokens": spec.skip_special_tokens,
        "spaces_between_special_tokens": spec.spaces_between_special_tokens,
        "include_stop_str_in_output": spec.no_stop_trim,
    }
