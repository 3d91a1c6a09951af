"""The tools of `/v1/responses`: functions, alone or in a namespace, custom ones; what is refused.

A namespace is a group of functions. Its functions are offered to the model as `NAMESPACE__NAME`; in
items a call has both names apart.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from runtime.errors import BadRequest
from runtime.server.chat_schema import Tool, ToolFunction
from runtime.server.custom_tools import CustomFormat, CustomTool

_CALLABLE = ("function", "namespace", "custom")
_EXPECTED = '{"type": "function", "name": ..., "parameters": ...}'


class InnerTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool of a namespace; `parameters` is a JSON schema of an object."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseTool(InnerTool, frozen=True, omit_defaults=True):
    """One entry of `tools`.

    tools                of a namespace
    format               of a custom tool: text, or what it must be
    external_web_access  of a search: whether it may leave the server's own index
    """

    tools: list[InnerTool] | None = None
    format: CustomFormat | None = None
    external_web_access: bool | None = None


def offered(tools: Sequence[ResponseTool], tool_choice: Any) -> list[ResponseTool]:
    """Return the tools that the model can call.

    Left out is what could never be called: any other tool where `tool_choice` is none or names one
    tool, and a search that may not leave this server's index, as this server has none; Codex lists
    one by default. Raises BadRequest, with the types of all others, where the model could have
    called them.
    """
    functions = [tool for tool in tools if tool.type in _CALLABLE]
    reached = tool_choice in (None, "auto", "required")
    others = [tool for tool in tools if tool.type not in _CALLABLE]
    missed = [t.type for t in others if not (functions and _finds_nothing(t))] if reached else []
    if missed:
        types = ", ".join(repr(kind[:80]) for kind in dict.fromkeys(missed[:16]))
        text = (
            f"tools: {types} not supported: this server runs no tools. Leave them out, give "
            "functions that do the same, or let tool_choice name a function"
        )
        raise BadRequest(text, param="tools", code="not_supported")
    return functions


def chat_tools(tools: Sequence[ResponseTool]) -> list[Tool]:
    """Return `offered` tools as those of a chat. Raises BadRequest."""
    made: list[Tool] = []
    for k, tool in enumerate(tools):
        if tool.type == "function":
            made.append(_function(tool, f"tools[{k}]"))
            continue
        if tool.type == "custom":
            if not tool.name:
                raise BadRequest(f"tools[{k}]: a custom tool has a name", param="tools")
            custom = CustomTool(tool.name, tool.description or "", tool.format)
            made.append(Tool(type="custom", custom=custom))
            continue
        where = f"tools[{k}].tools"
        if not tool.name or not tool.tools:
            text = f"tools[{k}]: a namespace has a name and tools"
            raise BadRequest(text, param="tools")
        for n, inner in enumerate(tool.tools):
            if inner.type != "function":
                text = f"{where}[{n}]: the type {inner.type[:80]!r} is not supported"
                raise BadRequest(f"{text}: give functions", param="tools", code="not_supported")
            made.append(_function(inner, f"{where}[{n}]", tool))
    _check_names(made, tools)
    return made


def full_name(namespace: str | None, name: str) -> str:
    """Return the name by which the model knows a function."""
    return f"{namespace}__{name}" if namespace else name


def namespaced(tools: Sequence[ResponseTool]) -> dict[str, dict[str, str]]:
    """Return `name` and `namespace` of each function of a namespace, by its full name."""
    return {
        full_name(tool.name, inner.name or ""): {
            "name": inner.name or "",
            "namespace": tool.name or "",
        }
        for tool in tools
        if tool.type == "namespace"
        for inner in tool.tools or ()
    }


def _finds_nothing(tool: ResponseTool) -> bool:
    return tool.type.startswith("web_search") and tool.external_web_access is False


def _function(tool: InnerTool, where: str, group: ResponseTool | None = None) -> Tool:
    if not tool.name:
        raise BadRequest(f"{where}: a function is {_EXPECTED}", param="tools")
    # Source: deepseek-recipe describes a tool that has no description with nothing.
    described, name = tool.description or "", tool.name
    if group is not None:
        # V4's format has no groups: each function has the description of its own.
        described = "\n".join(filter(None, (group.description, described)))
        name = full_name(group.name, name)
    return Tool(ToolFunction(name, described, tool.parameters, tool.strict))


def _check_names(made: Sequence[Tool], tools: Sequence[ResponseTool]) -> None:
    """Raise BadRequest where a call could not tell a function of a namespace from another."""
    names = [tool.called.name for tool in made]
    for name in namespaced(tools):
        if names.count(name) > 1:
            raise BadRequest(f"tools: {name[:80]!r} is there twice", param="tools")
