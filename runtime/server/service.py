"""What every route needs, made once per server, and the facts clients ask of it."""

import time
from dataclasses import dataclass, field
from pathlib import PurePath

from runtime.chat_template import ChatEncoder
from runtime.config import ServerConfig
from runtime.errors import BadRequest, NotFound
from runtime.server.auth import CacheNamespaces
from runtime.server.metrics import Metrics
from runtime.server.runs import Batches
from runtime.server.spelling import Speller
from runtime.tokenizer.manager import TokenizerManager

VERSION = "0.1.0"
# Fan-out happens before admission can count it.
MAX_PROMPTS = 256
MAX_SEQUENCES = 1024


@dataclass(frozen=True, slots=True)
class Service:
    """The parts of a running server.

    chat     None where the checkpoint has no tokenizer
    speller  shows single tokens
    batches  names of the batches that run
    started  Unix time, whole seconds
    """

    manager: TokenizerManager
    config: ServerConfig
    metrics: Metrics
    namespaces: CacheNamespaces
    chat: ChatEncoder | None
    speller: Speller
    batches: Batches = field(default_factory=Batches)
    started: int = field(default_factory=lambda: int(time.time()))

    @property
    def model_name(self) -> str:
        """Name of the model in the API."""
        return served_name(self.config)

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

    def check_fan_out(self, prompts: int, choices: int) -> None:
        """Raise BadRequest for an empty batch, or one of too many prompts or sequences."""
        if prompts == 0:
            raise BadRequest("there is no prompt", param="prompt")
        if prompts > MAX_PROMPTS:
            raise BadRequest(
                f"a request has at most {MAX_PROMPTS} prompts, got {prompts}", param="prompt"
            )
        if prompts * choices > MAX_SEQUENCES:
            raise BadRequest(
                f"a request has at most {MAX_SEQUENCES} sequences, got {prompts} prompts with "
                f"{choices} choices each",
                param="n",
            )

    def check_token_ids(self, token_ids: list[int], *, param: str) -> None:
        """Raise BadRequest unless there are ids and all lie in the vocabulary."""
        if not token_ids:
            raise BadRequest(f"{param} is empty", param=param)
        if min(token_ids) < 0 or max(token_ids) >= self.vocab_size:
            raise BadRequest(f"{param} must lie in [0, {self.vocab_size})", param=param)


def served_name(config: ServerConfig) -> str:
    """Return the name of the model in the API."""
    return config.served_model_name or config.model_path or "default"
