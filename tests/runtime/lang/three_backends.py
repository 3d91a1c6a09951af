"""All three backends over one stand-in model: a native server, an engine, an OpenAI server."""

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, cast

import httpx

from runtime.engine.engine import Engine
from runtime.errors import BadSampling, RequestError, Unavailable
from runtime.lang.backend import Backend
from runtime.lang.endpoint import Endpoint
from runtime.lang.local import Local
from runtime.lang.openai_endpoint import OpenAI

Json = dict[str, Any]
NAMES = ("endpoint", "local", "openai")
MAX_TEMPERATURE = 2


class Model:
    """Answers a prompt with what `reply` returns for it, and keeps what it was sent.

    prompts   of every generation that was answered; a chat as "role: content" lines
    is_dead   nothing answers
    """

    def __init__(self, reply: Callable[[str], str] = lambda prompt: f"<{len(prompt)}>") -> None:
        self.reply = reply
        self.prompts: list[str] = []
        self.is_dead = False

    def answer(self, prompt: str, sampling: Json) -> str:
        """Return the text. Raises BadSampling for a temperature out of range."""
        temperature = sampling.get("temperature", 0)
        if not 0 <= temperature <= MAX_TEMPERATURE:
            raise BadSampling("temperature", f"between 0 and {MAX_TEMPERATURE}", temperature)
        limit = sampling.get("max_new_tokens", sampling.get("max_tokens"))
        if limit == 0:
            return ""
        self.prompts.append(prompt)
        return self.reply(prompt)

    def native(self, body: Json) -> Any:
        """Return the reply of `/generate`; several for `n`."""
        sampling = body.get("sampling_params") or {}
        text = self.answer(_native_prompt(body), sampling)
        meta: Json = {"finish_reason": {"type": "length"}}
        if top := body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = [
                [[-float(k), k, letter] for k in range(top)] for letter in text
            ]
        reply = {"text": text, "output_ids": list(text.encode()), "meta_info": meta}
        count = sampling.get("n") or 1
        return [reply] * count if count > 1 else reply

    def score(self, body: Json) -> Json:
        """Return the reply of `/score`: the last choice is the likeliest."""
        rows = [
            {"token_ids": [k], "token_texts": [choice], "logprobs": [float(k)]}
            | ({"unconditional_logprobs": [None]} if body.get("unconditional") else {})
            for k, choice in enumerate(body["choices"])
        ]
        return {"choices": rows, "meta_info": {}}

    def openai(self, path: str, body: Json) -> Json:
        """Return the reply of `/completions` or `/chat/completions`."""
        if body.get("echo"):
            return {"choices": [_echo(k, text) for k, text in enumerate(body["prompt"])]}
        if path.endswith("/chat/completions"):
            text = self.answer(_chat(body["messages"]), body)
            choice: Json = {"message": {"content": text}, "delta": {"content": text}}
            if top := body.get("top_logprobs"):
                rows = [[{"token": c, "logprob": -float(k)} for k in range(top)] for c in text]
                choice["logprobs"] = {"content": [{**row[0], "top_logprobs": row} for row in rows]}
        else:
            text = self.answer(body["prompt"], body)
            choice = {"text": text}
        choices = range(body.get("n") or 1)
        return {"choices": [{"index": k, "finish_reason": "stop", **choice} for k in choices]}


def make_backend(name: str, model: Model) -> Backend:
    """Return the backend of this name over `model`."""
    if name == "local":
        return Local(cast(Engine, _Engine(model)))
    transport = httpx.MockTransport(lambda request: _serve(model, request))
    if name == "endpoint":
        return Endpoint("http://server", transport=transport)
    return OpenAI("m", base_url="http://server/v1", transport=transport)


class _Engine:
    """What `Local` needs of an engine."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def _live(self) -> Model:
        if self._model.is_dead:
            raise Unavailable("the engine is shut down")
        return self._model

    async def async_generate(self, **fields: Any) -> Any:
        """Answer, or return a stream of one answer."""
        body = {"text" if name == "prompt" else name: value for name, value in fields.items()}
        return self._stream(body) if body.get("stream") else self._live().native(body)

    async def _stream(self, body: Json) -> AsyncGenerator[Json, None]:
        yield self._live().native(body)

    async def async_score(self, **fields: Any) -> Any:
        """Answer."""
        return self._live().score(fields)


def _serve(model: Model, request: httpx.Request) -> httpx.Response:
    if model.is_dead:
        raise httpx.ConnectError("connection refused")
    body, path = json.loads(request.content), request.url.path
    try:
        if path == "/generate":
            reply = model.native(body)
        elif path == "/score":
            reply = model.score(body)
        else:
            reply = model.openai(path, body)
    except RequestError as error:
        told = {"message": error.message, "param": error.param, "type": error.kind}
        return httpx.Response(error.status, json={"error": told})
    if body.get("stream"):
        return httpx.Response(200, text=f"data: {json.dumps(reply)}\n\ndata: [DONE]\n\n")
    return httpx.Response(200, json=reply)


def _native_prompt(body: Json) -> str:
    parts = body.get("prompt_parts")
    if parts is None:
        return str(body["text"])
    if "messages" in parts:
        return _chat(parts["messages"], parts.get("between", ()))
    pieces = (p if isinstance(p, str) else bytes(p).decode() for p in parts["segments"])
    return "".join(pieces)


def _chat(messages: list[Json], between: Sequence[Json] = ()) -> str:
    lines = [f"{message['role']}: {message['content']}" for message in messages]
    for text in between:
        piece = text["segment"]
        written = piece if isinstance(piece, str) else bytes(piece).decode()
        lines.append(f"after {text['after']}: {written}")
    return "\n".join(lines)


def _echo(index: int, text: str) -> Json:
    """Return a prompt's tokens, one a character; those of later prompts are likelier."""
    logprobs = {
        "tokens": list(text),
        "text_offset": list(range(len(text))),
        "token_logprobs": [None, *[float(index)] * (len(text) - 1)],
    }
    return {"index": index, "logprobs": logprobs}
