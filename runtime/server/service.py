"""What every dialect needs, made once per server or engine; it knows no HTTP."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

import numpy as np
import numpy.typing as npt

from runtime.chat.answer_format import AnswerFormat
from runtime.chat.v4_encoder import V4Encoder
from runtime.chat_template import ChatEncoder
from runtime.config import ServerConfig
from runtime.errors import BadRequest, NotFound, PromptTooLong, Unavailable
from runtime.messages import Flushed, State
from runtime.server.chat_formats import (
    V4_CALLS,
    V4_REASONING,
    template_encoder,
    v4_encoder,
)
from runtime.server.metrics import Metrics
from runtime.server.namespaces import CacheNamespaces
from runtime.server.next_turn import NextTurn
from runtime.server.runs import Batches
from runtime.server.sampling_defaults import OPENAIS, SamplingDefaults, sampling_defaults
from runtime.server.spelling import Speller
from runtime.tokenizer.call import refuse_long
from runtime.tokenizer.manager import TokenizerManager

# Fan-out happens before admission can count it.
MAX_PROMPTS = 256
MAX_SEQUENCES = 1024
_STATE_LIMIT_S = 0.3


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a running server, or of an engine without one.

    chat     None where the checkpoint has no tokenizer
    v4       encodes chats, instead of `chat`, where the tokenizer knows V4's format
    answers  how answers of `chat` are read, None where it is
    defaults what a request is sampled with where it says nothing
    next_turn  None where nothing is to be prefilled ahead
    speller  shows single tokens
    batches  names of the batches that run
    trusted  who asks is the program itself: a batch may have any size, and runs as there is room
    started  Unix time, whole seconds
    """

    manager: TokenizerManager
    config: ServerConfig
    metrics: Metrics
    namespaces: CacheNamespaces
    chat: ChatEncoder | None
    speller: Speller
    v4: V4Encoder | None = None
    answers: AnswerFormat | None = None
    defaults: SamplingDefaults = field(default_factory=lambda: OPENAIS)
    next_turn: NextTurn | None = None
    batches: Batches = field(default_factory=Batches)
    trusted: bool = False
    started: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def make(
        cls, manager: TokenizerManager, config: ServerConfig, *, trusted: bool = False
    ) -> "Service":
        """Return the parts around `manager`, and let the metrics observe it.

        Raises ConfigError where the checkpoint's chat template or its generation_config.json is
        not valid, or the settings of chats are for others.
        """
        tokenizer = manager.tokenizer
        chat = answers = None
        model_type = str(manager.ready.info.get("model_type") or "")
        v4 = v4_encoder(tokenizer.backend, config, model_type=model_type)
        if v4 is None and tokenizer.backend is not None:
            chat, answers = template_encoder(tokenizer, config, model_type=model_type)
        ahead = not (config.disable_next_turn_prefill or config.disable_radix_cache)
        thinks = v4 is not None or (answers is not None and answers.reasoning is not None)
        service = cls(
            manager=manager,
            config=config,
            metrics=Metrics(
                served_name(config),
                log_requests=config.log_requests,
                memory=manager.ready.memory,
            ),
            namespaces=CacheNamespaces(config.api_key),
            chat=chat,
            v4=v4,
            answers=answers,
            defaults=sampling_defaults(config, vocab_size=manager.limits.vocab_size),
            next_turn=NextTurn(manager) if thinks and ahead else None,
            speller=Speller(tokenizer),
            trusted=trusted,
        )
        manager.observer = service.metrics
        return service

    @property
    def replicas(self) -> int:
        """How many parts of the server have rows and pages of their own, as the scheduler said."""
        told = self.manager.ready.info.get("dp_size", self.config.dp_size)
        return told if isinstance(told, int) else 1

    @property
    def model_name(self) -> str:
        """Name of the model in the API."""
        return served_name(self.config)

    @property
    def chat_format(self) -> Literal["deepseek_v4", "jinja"] | None:
        """How chats are written: DeepSeek's own format, the checkpoint's template, or not."""
        if self.v4 is not None:
            return "deepseek_v4"
        return "jinja" if self.chat is not None and self.chat.has_template else None

    @property
    def tool_call_parser(self) -> str | None:
        """Name of the format of tool calls, None where the model calls no tools."""
        if self.v4 is not None:
            return V4_CALLS
        return self.answers.calls.name if self.answers and self.answers.calls else None

    @property
    def reasoning_parser(self) -> str | None:
        """Name of the format of reasoning, None where there is none."""
        if self.v4 is not None:
            return V4_REASONING
        return self.answers.reasoning if self.answers else None

    @property
    def vocab_size(self) -> int:
        """Number of token ids the network knows."""
        return self.manager.limits.vocab_size

    @property
    def context_tokens(self) -> int:
        """Longest prompt plus output."""
        return self.manager.limits.context_tokens

    def check_model(self, name: str | None) -> None:
        """Raise NotFound unless `name` is one of the names of the served model."""
        path = self.config.model_path or ""
        known = {"default", self.model_name, path, PurePath(path).name}
        if name and name not in known:
            raise NotFound(
                f"there is no model {name[:200]!r}; this server has {self.model_name!r}",
                param="model",
                code="model_not_found",
            )

    def check_prompts(self, count: int) -> None:
        """Raise BadRequest for an empty batch, or one of too many prompts."""
        if count == 0:
            raise BadRequest("there is no prompt", param="prompt")
        if count > MAX_PROMPTS and not self.trusted:
            raise BadRequest(
                f"a request has at most {MAX_PROMPTS} prompts, got {count}", param="prompt"
            )

    def refuse_long(self, ids: Sequence[object]) -> None:
        """Raise PromptTooLong for a list that no context holds: looking at all of it takes long."""
        try:
            refuse_long(ids, self.manager.limits)
        except PromptTooLong as refusal:
            self.manager.observer.refused(type(refusal).__name__)
            raise

    def check_fan_out(self, prompts: int, choices: int) -> None:
        """Raise BadRequest for a batch that could never be admitted: all of it is sent at once."""
        self.check_prompts(prompts)
        most = min(MAX_SEQUENCES, self.manager.room)
        if prompts * choices > most and not self.trusted:
            raise BadRequest(
                f"a request has at most {most} sequences on this server, got {prompts} prompts "
                f"with {choices} choices each",
                param="n" if choices > 1 else "prompt",
            )

    def check_token_ids(self, token_ids: list[int] | npt.NDArray[np.int64], *, param: str) -> None:
        """Raise BadRequest unless there are ids and all lie in the vocabulary."""
        ids = np.asarray(token_ids)
        if not len(ids):
            raise BadRequest(f"{param} is empty", param=param)
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise BadRequest(f"{param} must lie in [0, {self.vocab_size})", param=param)

    async def state(self) -> State | None:
        """Return the scheduler's state as of now, or its last heartbeat while it computes."""
        try:
            return await asyncio.wait_for(self.manager.state(), _STATE_LIMIT_S)
        except (TimeoutError, Unavailable):
            return self.manager.last_state

    async def flush_cache(self) -> Flushed:
        """Empty the prefix cache, if no request runs. Raises Unavailable."""
        if self.next_turn is not None:
            await self.next_turn.stop()
        return await self.manager.flush_cache()

    async def abort(self, rid: str | None, *, all: bool = False) -> int:
        """End the calls of the request with exactly this name, or all; return how many.

        Raises BadRequest without a name.
        """
        if all:
            return await self.manager.abort(None, all=True)
        if not rid:
            raise BadRequest("give rid, or abort_all: true", param="rid")
        # All hear of it before any ends, and gives its place to the next.
        members = self.batches.members(rid)
        return sum(await asyncio.gather(*(self.manager.abort(label) for label in members)))


def served_name(config: ServerConfig) -> str:
    """Return the name of the model in the API."""
    return config.served_model_name or config.model_path or "default"
