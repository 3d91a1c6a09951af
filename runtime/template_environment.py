"""The sandbox that chat templates run in, with what transformers gives them."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def template_environment(now: datetime) -> ImmutableSandboxedEnvironment:
    """Return an environment for chat templates.

    now  what `strftime_now` formats, always the same: a date that changes at midnight would change
         the beginning of every prompt
    """
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension]
    )
    env.filters["tojson"] = _to_json
    names = cast(dict[str, Any], env.globals)
    strftime_now: Callable[[str], str] = now.strftime
    names.update(raise_exception=_raise_exception, strftime_now=strftime_now)
    return env


def render_once(template: str, chat: Sequence[tuple[str, str]]) -> str:
    """Return the text of a chat of (role, content). Raises what a template may raise."""
    turns = [{"role": role, "content": content} for role, content in chat]
    names = {"bos_token": "", "eos_token": "", "tools": None, "documents": None}
    rendered = template_environment(datetime.now()).from_string(template)
    return rendered.render({**names, "messages": turns, "add_generation_prompt": True})


class _Generation(Extension):
    """The block that marks what an assistant wrote, for training: here it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the nodes between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace Jinja's own filter, which escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
