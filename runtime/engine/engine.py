"""`Engine`: generate, score and chat from a Python program, in threads and event loops alike."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar, Unpack

from runtime.config import ServerConfig
from runtime.engine.options import (
    GenerateOptions,
    Ids,
    SamplingParams,
    ScoreOptions,
    Texts,
    engine_config,
    prompted,
    scored,
)
from runtime.engine.remote_stream import RemoteStream
from runtime.engine.thread import EngineThread
from runtime.server.chat import Chats
from runtime.server.chat_schema import ChatBody
from runtime.server.facts import server_info
from runtime.server.fields import as_body
from runtime.server.native import Generations
from runtime.server.prompt import PromptedBody, Prompts
from runtime.server.score import Scores
from runtime.server.tokenize import DetokenizeBody, TokenIds, TokenizeBody
from runtime.supervision import SCHEDULER_MAIN, resolve

Json = dict[str, Any]
Result = TypeVar("Result")


class Engine:
    """A model in a scheduler process of its own, without a server.

    Arguments and replies are those of the HTTP API: `generate` is `/generate`, `score` is
    `/score`, `chat` is `/v1/chat/completions`. Every method may be called from several threads
    and event loops at once; those that begin with `async_` do not block. Cancelling one, or
    leaving a stream, ends its request. Methods raise RequestError (runtime.errors): BadRequest
    for what cannot be asked, QueueFull where too much was, Unavailable once the engine is shut
    down or its scheduler has died. Two engines share nothing.

    config          settings, resolved
    scheduler_main  "module:function" that the scheduler process runs
    """

    def __init__(
        self,
        config: ServerConfig | None = None,
        *,
        scheduler_main: str = SCHEDULER_MAIN,
        **flags: Any,
    ) -> None:
        """Start the scheduler and wait until it is ready.

        flags  fields of `ServerConfig`, but for what only a server has; they come before `config`
        Raises ConfigError for what cannot be served, WorkerDied where the scheduler ends.
        """
        self.config = resolve(engine_config(config, flags))
        self._thread = EngineThread(self.config, scheduler_main)
        self._service = service = self._thread.start()
        self._chats = Chats(service)
        prompts = Prompts(service, self._chats)
        self._generations = Generations(service, prompts)
        self._scores = Scores(service, prompts)
        self._token_ids = TokenIds(service, self._chats)
        # At exit the thread ends itself, and is waited for; here nobody may wait.
        weakref.finalize(self, self._thread.stop, wait=False).atexit = False

    # --- generating

    def generate(
        self,
        prompt: Texts | None = None,
        sampling_params: SamplingParams | None = None,
        input_ids: Ids | None = None,
        *,
        stream: bool = False,
        n: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Continue one prompt or a batch, given as text or as ids.

        sampling_params  as for `/generate`; a list has one for each prompt
        n                choices for each prompt; another place to say it
        Returns what `/generate` replies: a dict, or a list of them. With `stream`, a generator of
        what its events say: each answer so far.
        """
        body = prompted(prompt, sampling_params, input_ids, stream=stream, n=n, **options)
        if stream:
            return RemoteStream(self._thread, lambda: self._generate_stream(body)).read()
        return self._do(lambda: self._generate(body))

    async def async_generate(
        self,
        prompt: Texts | None = None,
        sampling_params: SamplingParams | None = None,
        input_ids: Ids | None = None,
        *,
        stream: bool = False,
        n: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Any:
        """Do what `generate` does; with `stream`, return an async generator."""
        body = prompted(prompt, sampling_params, input_ids, stream=stream, n=n, **options)
        if stream:
            return RemoteStream(self._thread, lambda: self._generate_stream(body)).aread()
        return await self._async_do(lambda: self._generate(body))

    async def _generate(self, body: PromptedBody) -> Json | list[Json]:
        return await self._generations.gather(await self._generations.plan(body))

    async def _generate_stream(self, body: PromptedBody) -> AsyncGenerator[Json, None]:
        plan = await self._generations.plan(body)
        async with aclosing(self._generations.stream(plan)) as chunks:
            async for chunk in chunks:
                yield chunk

    # --- scoring

    def score(
        self,
        prompt: str | None = None,
        choices: Sequence[str | Sequence[int]] = (),
        input_ids: Sequence[int] | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Json:
        """Say how likely a prompt is to go on with each of `choices`; return `/score`'s reply."""
        body = scored(prompt, choices, input_ids, options)
        return self._do(lambda: self._scores.score(body))

    async def async_score(
        self,
        prompt: str | None = None,
        choices: Sequence[str | Sequence[int]] = (),
        input_ids: Sequence[int] | None = None,
        **options: Unpack[ScoreOptions],
    ) -> Json:
        """Do what `score` does."""
        body = scored(prompt, choices, input_ids, options)
        return await self._async_do(lambda: self._scores.score(body))

    # --- chatting

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **options: Any
    ) -> Any:
        """Answer a conversation, asked with the options of `/v1/chat/completions`.

        Returns a chat completion; with `stream`, a generator of its chunks.
        """
        body = as_body({"messages": messages, "stream": stream, **options}, ChatBody)
        if stream:
            return RemoteStream(self._thread, lambda: self._chat_stream(body)).read()
        return self._do(lambda: self._chat(body))

    async def async_chat(
        self, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **options: Any
    ) -> Any:
        """Do what `chat` does; with `stream`, return an async generator."""
        body = as_body({"messages": messages, "stream": stream, **options}, ChatBody)
        if stream:
            return RemoteStream(self._thread, lambda: self._chat_stream(body)).aread()
        return await self._async_do(lambda: self._chat(body))

    async def _chat(self, body: ChatBody) -> Json:
        return await self._chats.gather(await self._chats.plan(body))

    async def _chat_stream(self, body: ChatBody) -> AsyncGenerator[Json, None]:
        plan = await self._chats.plan(body)
        async with aclosing(self._chats.stream(plan)) as chunks:
            async for chunk in chunks:
                yield chunk

    # --- everything else

    def tokenize(self, prompt: Texts | None = None, **options: Any) -> list[Any]:
        """Return the ids of a text, or a list of them for several; options as for `/tokenize`."""
        body = as_body({"prompt": prompt, **options}, TokenizeBody)
        return self._do(lambda: self._token_ids.tokens(body))

    def detokenize(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids."""
        fields = {"tokens": tokens, "skip_special_tokens": skip_special_tokens}
        body = as_body(fields, DetokenizeBody)
        return self._do(lambda: self._token_ids.text(body))

    def flush_cache(self) -> bool:
        """Empty the prefix cache; return False, and leave it, while requests run."""
        return self._do(self._service.flush_cache).done

    def server_info(self) -> Json:
        """Return settings, facts and counters, as `/server_info` does."""
        return self._do(lambda: server_info(self._service))

    get_server_info = server_info

    def abort(self, rid: str | None = None, *, all: bool = False) -> int:
        """End the request that was named `rid`, or all; return how many. They finish "abort"."""
        return self._do(lambda: self._service.abort(rid, all=all))

    # --- its end

    def shutdown(self, *, drain_s: float = 0.0) -> None:
        """End the engine; again is allowed.

        Requests that still run have `drain_s` to finish, and streams to be read or left; then they
        raise Unavailable.
        """
        self._thread.stop(drain_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.shutdown)

    def _do(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return self._thread.wait(self._thread.submit(work))

    async def _async_do(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        return await self._thread.arrival(self._thread.submit(work))
