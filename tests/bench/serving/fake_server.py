"""A server that answers by script, on a loopback socket, for tests of the client.

It speaks all three dialects: prompts of `n` tokens, `hit` of them cached, answers of as many
tokens as asked. Token `k` of an answer is `100 + k`, and reads "wk ".
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

Json = dict[str, Any]


class FakeServer:
    """What it was asked, and how it answers.

    bodies      of every request, in the order of their arrival
    flushes     how often the cache was emptied
    in_flight, most_in_flight   requests being answered
    hit         cached tokens it reports
    refuse      status with which it refuses every request; 0 for none
    break_off   end each stream with an error after its first token
    abort       end each stream with the finish "abort" after its first token
    tells_ids   whether `/v1/completions` tells token ids
    cut         bytes at a time in which streams are sent; 0: an event at a time
    """

    def __init__(self) -> None:
        self.bodies: list[Json] = []
        self.flushes = 0
        self.in_flight = self.most_in_flight = 0
        self.hit = 3
        self.refuse = 0
        self.break_off = False
        self.abort = False
        self.tells_ids = True
        self.cut = 0
        self.url = ""
        self.app = FastAPI()
        for path in ("/generate", "/v1/completions", "/v1/chat/completions"):
            self.app.add_api_route(path, self._answer, methods=["POST"])
        self.app.add_api_route("/flush_cache", self._flush, methods=["POST"])
        self.app.add_api_route("/v1/models", self._models, methods=["GET"])

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "fake", "owned_by": "nobody"}]})

    async def _flush(self, request: Request) -> Response:
        self.flushes += 1
        return Response("done")

    async def _answer(self, request: Request) -> Response:
        body: Json = await request.json()
        self.bodies.append(body)
        if self.refuse:
            return JSONResponse({"error": {"message": "no"}}, status_code=self.refuse)
        return StreamingResponse(self._stream(body), media_type="text/event-stream")

    async def _stream(self, body: Json) -> AsyncIterator[bytes]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for event in self._events(body):
                data = b"data: " + event.encode() + b"\n\n"
                for at in range(0, len(data), self.cut or len(data)):
                    yield data[at : at + (self.cut or len(data))]
                    await asyncio.sleep(0)
        finally:
            self.in_flight -= 1

    def _events(self, body: Json) -> Iterator[str]:
        native = "sampling_params" in body
        count = body["sampling_params"]["max_new_tokens"] if native else body["max_tokens"]
        for k in range(count):
            if self.break_off and k:
                yield json.dumps({"error": {"message": "broke"}})
                return
            event = self._native(body, k) if native else self._openai(body, k)
            if self.abort:
                finish = event["meta_info"] if native else event["choices"][0]
                finish["finish_reason"] = {"type": "abort"} if native else "abort"
            yield json.dumps(event)
            if self.abort:
                break
        if not native:
            yield json.dumps({"choices": [], "usage": self._usage(body, count)})
        yield "[DONE]"

    def _native(self, body: Json, k: int) -> Json:
        meta = {"prompt_tokens": len(body["input_ids"]), "cached_tokens": self.hit}
        ids = [100 + i for i in range(k + 1)]
        return {"output_ids": ids, "meta_info": {**meta, "completion_tokens": k + 1}}

    def _openai(self, body: Json, k: int) -> Json:
        choice: Json = {"index": 0, "text": f"w{k} "}
        if "messages" in body:
            choice = {"index": 0, "delta": {"content": f"w{k} "}}
        elif self.tells_ids and body.get("return_token_ids"):
            choice["token_ids"] = [100 + k]
        asked = body["stream_options"].get("continuous_usage_stats")
        more = {"usage": self._usage(body, k + 1)} if asked else {}
        return {"choices": [choice], **more}

    def _usage(self, body: Json, count: int) -> Json:
        prompt = body.get("prompt")
        words = " ".join(message["content"] for message in body.get("messages", ())).split()
        return {
            "prompt_tokens": len(words if prompt is None else prompt),
            "completion_tokens": count,
            "prompt_tokens_details": {"cached_tokens": self.hit},
        }


@asynccontextmanager
async def fake_server() -> AsyncIterator[FakeServer]:
    """Serve on a free loopback port for the length of a test."""
    server = FakeServer()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = uvicorn.Server(uvicorn.Config(server.app, log_config=None, ws="none"))
        serving = asyncio.ensure_future(web.serve(sockets=[listener]))
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            yield server
        finally:
            web.should_exit = True
            await serving
