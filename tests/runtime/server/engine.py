"""A scheduler that is no scheduler: answers the manager's messages from a script, in one loop.

The real TokenizerManager stands on it, so that routes are tested with its streams and refusals.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, cast

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from runtime.cache_messages import CacheView, GetCache
from runtime.config import ServerConfig
from runtime.ipc import ManagerSocket
from runtime.messages import (
    Abort,
    Flush,
    Flushed,
    Generate,
    GetState,
    Output,
    Outputs,
    Ready,
    RefusalReason,
    Refused,
    Shutdown,
    State,
    Stop,
    TokenLogprobs,
    unpack_ids,
)
from runtime.packed_logprobs import PromptLogprobs
from runtime.profile_messages import Profiled, StartProfile, StopProfile
from runtime.server.app import create_app
from runtime.tokenizer.manager import TokenizerManager
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.testing.cache_views import EMPTY
from tests.testing.prompt_logprobs import packed_prompt
from tests.testing.stand_in.tokenizer import EOS_ID, SPECIALS, train_tokenizer

VOCAB_SIZE = 300
V4_VOCAB_SIZE = 512
CONTEXT_TOKENS = 400
V4_CONTEXT_TOKENS = 8000
BOS, EOS, USER, ASSISTANT = 256, 257, 258, 259
FACTS: dict[str, str | int | float | bool] = {"architectures": "A", "model_type": "m"}
CONTROL = ("<|bos|>", "<|eos|>", "<|User|>", "<|Assistant|>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|Assistant|>{{ m['content'] }}{{ eos_token }}"
    "{% else %}{{ m['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|Assistant|>{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer of 256 byte tokens and four control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in CONTROL])
    return tokenizer


@cache
def _v4_tokenizer() -> Tokenizer:
    return train_tokenizer()


def text_ids(text: str) -> list[int]:
    """Return the ids of text in which nothing is a control token: one per byte."""
    alphabet = byte_tokenizer()
    return [i for char in text for i in alphabet.encode(char).ids]


class Engine:
    """Replies to each Generate with `reply`, `step` tokens at a time.

    reply     text the model says
    refuse    reason with which every request is refused
    fail      error with which every request ends after its first token
    hold      while it is clear, nothing is said beyond a stream's first token
    free      so many requests, the first ones, are answered whatever `hold` is
    requests  every Generate received
    aborted   ids of every Abort received
    stopped   ids of every Stop received
    view      what GetCache is answered with; None: with silence
    asked     every GetCache received
    profiles  every StartProfile received
    loop      to call `send` on from another thread
    """

    def __init__(self, tokenizer: Tokenizer, *, eos: int = EOS) -> None:
        self.tokenizer = tokenizer
        self.eos = eos
        self.reply = "hello"
        self.step = 1
        self.refuse: RefusalReason | None = None
        self.fail: str | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.free = 0
        self.requests: list[Generate] = []
        self.aborted: list[int] = []
        self.stopped: list[int] = []
        self.view: CacheView | None = EMPTY
        self.asked: list[GetCache] = []
        self.profiles: list[StartProfile] = []
        self.loop = asyncio.get_running_loop()
        self.running: dict[int, asyncio.Task[None]] = {}
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    def send(self, message: Any) -> None:
        """Take a message of the manager."""
        match message:
            case Generate():
                self.requests.append(message)
                held = len(self.requests) > self.free
                task = asyncio.ensure_future(self._answer(message, held=held))
                self.running[message.request_id] = task
                task.add_done_callback(lambda _: self.running.pop(message.request_id, None))
            case Abort():
                self.aborted += message.request_ids
                self._cancel(message.request_ids)
            case Stop():
                self.stopped += message.request_ids
                self._cancel(message.request_ids)
            case Flush():
                done = not self.running
                self._say(Flushed(message.call_id, done, "empty" if done else "requests run"))
            case GetState():
                gauges = {"running": float(len(self.running)), "waiting": 0.0, "page_size": 4.0}
                gauges |= {"full_pages": 10.0, "full_pages_free": 4.0, "full_usage": 0.6}
                counters = {"requests": float(len(self.requests)), "evicted_pages": 2.0}
                self._say(State(message.call_id, counters, gauges))
            case GetCache():
                self.asked.append(message)
                if self.view is not None:
                    self._say(msgspec.structs.replace(self.view, call_id=message.call_id))
            case StartProfile():
                self.profiles.append(message)
                self._say(Profiled(message.call_id, True, "tracing", "/traces/x"))
            case StopProfile():
                done = bool(self.profiles)
                self._say(Profiled(message.call_id, done, "" if done else "none is running"))
            case Shutdown():
                pass
            case _:
                raise AssertionError(message)

    async def receive(self) -> Any:
        """Give the manager its next message."""
        return await self._inbox.get()

    def waiting(self) -> list[Any]:
        """Give the manager one message at a time: a test may count events."""
        return []

    def _cancel(self, request_ids: list[int]) -> None:
        for request_id in request_ids:
            if request_id in self.running:
                self.running[request_id].cancel()

    def _say(self, message: Any) -> None:
        self._inbox.put_nowait(message)

    async def _answer(self, request: Generate, *, held: bool) -> None:
        if self.refuse is not None:
            grammar = request.sampling.grammar
            param = None if grammar is None else grammar.field
            self._say(Refused(request.request_id, self.refuse, "no room", param, 7))
            return
        ids = self.tokenizer.encode(self.reply, add_special_tokens=False).ids
        most = request.sampling.max_new_tokens
        finish: Any = "length" if most <= len(ids) else "stop"
        ids = ids[:most] if finish == "length" else [*ids, self.eos]
        prompt = unpack_ids(request.input_ids)
        step = self.step if request.stream else len(ids) + 1
        parts = [ids[k : k + step] for k in range(0, len(ids), step)] or [[]]
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            if number > 0 or not request.stream:
                await asyncio.sleep(0)
                if held:
                    await self.hold.wait()
            self._say(
                Outputs(
                    [
                        Output(
                            request.request_id,
                            token_ids=part,
                            finish=finish if last else None,
                            matched_stop=self.eos if last and finish == "stop" else None,
                            prompt_tokens=len(prompt) if number == 0 else 0,
                            cached_tokens=3 if number == 0 else 0,
                            queue_s=0.25 if number == 0 else 0.0,
                            prefill_s=0.5 if number == 0 else 0.0,
                            decode_s=1.0 if last else 0.0,
                            prompt_logprobs=_prompt_logprobs(request) if number == 0 else None,
                            logprobs=_logprobs(request, part, -0.5),
                        )
                    ]
                )
            )
            if self.fail is not None and not last:
                self._say(Outputs([Output(request.request_id, finish="error", error=self.fail)]))
                return


def _prompt_logprobs(request: Generate) -> PromptLogprobs | None:
    if request.logprobs is None:
        return None
    ids = [int(i) for i in unpack_ids(request.input_ids)[request.logprobs.start :]]
    told = _logprobs(request, ids, -1.5)
    if told is None or not ids:
        return None
    top, picked = ([[], *rows[1:]] if rows else [] for rows in (told.top, told.picked))
    return packed_prompt(TokenLogprobs([None, *told.values[1:]], ids, top, picked))


def _logprobs(request: Generate, ids: list[int], value: float) -> TokenLogprobs | None:
    asked = request.logprobs
    if asked is None:
        return None
    top = [[(value, i), (float("-inf"), 65)][: asked.top] for i in ids] if asked.top else []
    picked = [[(value - 1, t) for t in asked.token_ids] for _ in ids] if asked.token_ids else []
    return TokenLogprobs([value] * len(ids), ids, top, picked)


class Server:
    """An application over a scripted engine, and a client of it.

    v4      with a tokenizer that knows V4's chat format, instead of a template
    family  a tokenizer of its own, and the token that ends its answers
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        template: str | None,
        v4: bool = False,
        family: tuple[Tokenizer, int] | None = None,
    ) -> None:
        backend, eos_id = (byte_tokenizer(), EOS) if family is None else family
        if v4:
            backend, eos_id = _v4_tokenizer(), EOS_ID
        bos, eos = SPECIALS[:2] if v4 else CONTROL[:2]
        facts = {"bos_token": bos, "eos_token": eos, "add_bos_token": False}
        if template is not None and not v4:
            facts["chat_template"] = template
        self.engine = Engine(backend, eos=eos_id)
        sizes = (V4_CONTEXT_TOKENS, V4_VOCAB_SIZE) if v4 or family else (CONTEXT_TOKENS, VOCAB_SIZE)
        ready = Ready(*sizes, [self.engine.eos], FACTS)
        self.manager = TokenizerManager(
            config,
            TextTokenizer(backend, facts),
            cast(ManagerSocket, self.engine),
            ready,
            seeds=iter(range(10**6)),
        )
        self.app: FastAPI = create_app(self.manager, config)
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://localhost",
        )

    async def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Send JSON."""
        return await self.client.post(path, json=body, headers=headers)

    async def events(self, path: str, body: Any) -> list[Any]:
        """Send JSON with `stream` set; return the decoded events, the last one "[DONE]"."""
        reply = await self.post(path, {**body, "stream": True})
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].startswith("text/event-stream")
        blocks = [block for block in reply.text.split("\n\n") if block]
        assert all(block.startswith("data: ") for block in blocks)
        data = [block.removeprefix("data: ") for block in blocks]
        return [item if item == "[DONE]" else json.loads(item) for item in data]


def served(
    config: ServerConfig | None = None,
    *,
    template: str | None = TEMPLATE,
    v4: bool = False,
    family: tuple[Tokenizer, int] | None = None,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Turn `async def test(server, ...)` into a test that pytest can run without plugins."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            async def scenario() -> None:
                made = serving(config, template=template, v4=v4, family=family)
                async with asyncio.timeout(60), made as server:
                    await test(server, **arguments)

            asyncio.run(scenario())

        signature = inspect.signature(test)
        rest = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return decorate


@asynccontextmanager
async def serving(
    config: ServerConfig | None = None,
    *,
    template: str | None = TEMPLATE,
    v4: bool = False,
    family: tuple[Tokenizer, int] | None = None,
) -> AsyncIterator[Server]:
    """Run a Server for the length of a test."""
    config = config or ServerConfig(model_path="/models/tiny", served_model_name="tiny")
    server = Server(config, template=template, v4=v4, family=family)
    receiving = asyncio.ensure_future(server.manager.run())
    try:
        async with server.client:
            yield server
    finally:
        receiving.cancel()
        await asyncio.gather(receiving, *server.engine.running.values(), return_exceptions=True)
        server.manager.close()


def tokenised(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that tells of each text that is tokenised from here on how long it was said."""
    told: list[int] = []
    in_thread = server.manager.in_thread

    async def look(work: Callable[[], Any], *, chars: int = 0) -> Any:
        told.append(chars)
        return await in_thread(work, chars=chars)

    monkeypatch.setattr(server.manager, "in_thread", look)
    return told
