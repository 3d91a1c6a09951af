"""What runs a program's generations: the contract, and the default that programs use."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.lang.bodies import wait
from runtime.lang.choices import ChoiceScore
from runtime.lang.loop import LOOP
from runtime.lang.prompt import Prompt
from runtime.lang.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Generation:
    """What a model wrote.

    token_ids  exactly what spells `text` after the prompt, where that is known: the next prompt
               continues after these ids; None: the text is tokenised anew
    meta_info  what the backend tells besides
    is_cut     a stop string ended it: `token_ids` spell the text, the stop string and perhaps more
    """

    text: str
    token_ids: tuple[int, ...] | None
    meta_info: dict[str, Any] = field(default_factory=dict[str, Any])
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """News of a generation that is under way.

    text       what is new
    last       the whole generation, on the last piece
    meta_info  what the backend tells so far
    """

    text: str
    last: Generation | None = None
    meta_info: dict[str, Any] = field(default_factory=dict[str, Any])


class Backend(Protocol):
    """Runs generations. All calls come from one event loop; cancelling one ends its requests.

    Methods raise RequestError (runtime.errors) where the backend refuses or fails.
    """

    async def generate(self, prompt: Prompt, sampling: Sampling) -> list[Generation]:
        """Continue a prompt; one generation per choice (`sampling.n`)."""
        ...

    def stream(self, prompt: Prompt, sampling: Sampling) -> AsyncGenerator[Piece, None]:
        """Continue a prompt, piece by piece; closing the generator ends the request."""
        ...

    async def score(
        self, prompt: Prompt, choices: tuple[str, ...], *, unconditional: bool
    ) -> tuple[list[ChoiceScore], dict[str, Any]]:
        """Say how likely the prompt goes on with each choice; and meta_info."""
        ...

    async def cache_prefix(self, prompt: Prompt) -> None:
        """Compute a prompt that others begin with, so that they need not."""
        ...

    async def aflush_cache(self) -> bool:
        """Empty the prefix cache; False where it is busy."""
        ...

    async def aserver_info(self) -> dict[str, Any]:
        """Return facts about whatever serves the model."""
        ...

    async def aclose(self) -> None:
        """Give back connections; the backend can be used again."""
        ...


class GlobalConfig:
    """Settings of all programs, as SGLang's `global_config` has them.

    default_backend  of programs that are given none
    """

    __slots__ = ("default_backend",)

    def __init__(self) -> None:
        self.default_backend: Backend | None = None


global_config = GlobalConfig()


def set_default_backend(backend: Backend | None) -> None:
    """Let programs that are given no backend use this one."""
    global_config.default_backend = backend


def backend_or_default(backend: Backend | None) -> Backend:
    """Return `backend`, or the default.

    Raises ValueError where there is none, RuntimeError in a process where none can be asked.
    """
    LOOP.refuse_fork()
    chosen = backend or global_config.default_backend
    if chosen is None:
        raise ValueError("no backend: call set_default_backend, or pass backend=")
    return chosen


def flush_cache(backend: Backend | None = None) -> bool:
    """Empty a backend's prefix cache; False where it is busy."""
    return wait(LOOP.submit(backend_or_default(backend).aflush_cache()))


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """Return facts about whatever serves the model."""
    return wait(LOOP.submit(backend_or_default(backend).aserver_info()))


class DirectCalls(ABC):
    """What a program asks of a backend itself, from synchronous code."""

    @abstractmethod
    async def aflush_cache(self) -> bool:
        """Empty the prefix cache; False where it is busy."""

    @abstractmethod
    async def aserver_info(self) -> dict[str, Any]:
        """Return facts about whatever serves the model."""

    def flush_cache(self) -> bool:
        """Empty the prefix cache; False where it is busy."""
        return wait(LOOP.submit(self.aflush_cache()))

    def get_server_info(self) -> dict[str, Any]:
        """Return facts about whatever serves the model."""
        return wait(LOOP.submit(self.aserver_info()))
