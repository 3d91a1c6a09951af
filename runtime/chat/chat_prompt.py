"""An encoded conversation, in whatever format."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A prompt, and what its answer begins with.

    token_ids   the prompt, up to where the assistant goes on
    thinking    whether the assistant may reason before it answers
    reasoning   whether the answer begins inside the reasoning
    tools       parameters' schema by name of the tools that may be called; None where the answer
                is not searched for calls
    """

    token_ids: list[int]
    thinking: bool
    reasoning: bool
    tools: dict[str, Any] | None
