"""`tool_choice`: whether tools may, must or cannot be called, and which of them."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from runtime.errors import BadRequest

_EXPECTED = "tool_choice must be none, auto, required, name a tool, or be allowed_tools"


class _Name(msgspec.Struct, frozen=True):
    name: str


class _Named(msgspec.Struct, frozen=True):
    """One tool, by what it is."""

    type: Literal["function", "custom"]
    function: _Name | None = None
    custom: _Name | None = None

    @property
    def name(self) -> str:
        named = self.function if self.type == "function" else self.custom
        if named is None:
            raise BadRequest(f"{_EXPECTED}: a {self.type} has a name", param="tool_choice")
        return named.name


class _Tools(msgspec.Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: list[_Named]


class _Allowed(msgspec.Struct, frozen=True):
    type: Literal["allowed_tools"]
    allowed_tools: _Tools


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether and which tools a request lets the model call.

    must      an answer has to call a tool
    names     of the tools that may be called; None: all
    is_single only one call is made
    """

    must: bool = False
    names: tuple[str, ...] | None = None
    is_single: bool = False

    def among(self, tools: dict[str, Any]) -> dict[str, Any]:
        """Return those of `tools` that may be called. Raises BadRequest for one that is missing."""
        if self.names is None:
            return tools
        for name in self.names:
            if name not in tools:
                text = f"tool_choice names no tool that is there: {name[:80]!r}"
                raise BadRequest(text, param="tool_choice")
        return {name: tool for name, tool in tools.items() if name in self.names}


def read_choice(tool_choice: Any) -> ToolChoice:
    """Return what a chat's `tool_choice` says; none is as auto. Raises BadRequest."""
    if tool_choice in (None, "none", "auto"):
        return ToolChoice()
    if tool_choice == "required":
        return ToolChoice(must=True)
    kind = tool_choice.get("type") if isinstance(tool_choice, dict) else None
    try:
        if kind == "allowed_tools":
            allowed = msgspec.convert(tool_choice, _Allowed).allowed_tools
            names = tuple(tool.name for tool in allowed.tools)
            if not names:
                raise BadRequest("allowed_tools has no tools", param="tool_choice")
            return ToolChoice(must=allowed.mode == "required", names=names)
        named = msgspec.convert(tool_choice, _Named)
    except msgspec.ValidationError as fault:
        raise BadRequest(f"{_EXPECTED}: {fault}", param="tool_choice") from None
    return ToolChoice(must=True, names=(named.name,), is_single=True)
