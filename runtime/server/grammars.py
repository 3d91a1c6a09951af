"""What a body says the output must be, as a grammar: SGLang's fields and OpenAI's formats.

What the grammar itself says is judged where it is compiled, in a process that may die of it.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, cast

import msgspec

from runtime.chat.answer_format import AnswerFormat
from runtime.chat.call_grammar import call_grammar, most_forced_calls
from runtime.chat.format_grammar import format_calls, opening_id
from runtime.chat.marks import THINK_END
from runtime.errors import BadRequest, GrammarError
from runtime.messages import Grammar, GrammarKind
from runtime.sampling import MAX_GRAMMAR_CHARS
from runtime.server.fields import refusing_depth
from runtime.server.structured_outputs import StructuredOutputs

_FORMATS = ("text", "json_object", "json_schema", "structural_tag")
# Fields of a format that say what the output must be, here or on other servers.
_OF_FORMATS = ("schema", "json_schema", "value", "grammar", "regex", "pattern")


def asked_grammar(
    *,
    response_format: dict[str, Any] | None = None,
    json_schema: str | dict[str, Any] | None = None,
    regex: str | None = None,
    ebnf: str | None = None,
    structural_tag: str | dict[str, Any] | None = None,
    structured_outputs: StructuredOutputs | None = None,
) -> Grammar | None:
    """Return the one grammar that is asked for, None where there is none.

    Raises BadRequest for more than one, one nested too deeply, or a malformed `response_format`,
    GrammarError where this server cannot serve any.
    """
    asked: dict[str, Grammar] = {}
    texts: dict[GrammarKind, str | dict[str, Any] | None] = {
        "json_schema": json_schema,
        "regex": regex,
        "ebnf": ebnf,
        "structural_tag": structural_tag,
    }
    for kind, text in texts.items():
        if text is not None:
            asked[kind] = Grammar(kind, text if isinstance(text, str) else _json(text, kind))
    others = {
        "response_format": _of_format(response_format),
        "structured_outputs": structured_outputs and structured_outputs.as_grammar(),
    }
    asked |= {name: grammar for name, grammar in others.items() if grammar is not None}
    if len(asked) > 1:
        names = ", ".join(asked)
        raise BadRequest(f"an output follows one grammar, got {names}", param=list(asked)[-1])
    for name, grammar in asked.items():
        require_compiler(name)
        return msgspec.structs.replace(grammar, field=name)
    return None


def forced_call(tools: Mapping[str, Any], *, dsml_id: int, parallel: bool) -> Grammar:
    """Return the grammar of an answer that calls one of these tools; see `call_grammar`.

    parallel  whether there may be more calls than one, up to `most_forced_calls`
    Raises GrammarError for a tool that cannot be forced, or where no grammar can be served,
    BadRequest for one nested too deeply.
    """
    require_compiler("tool_choice")
    text = _calls(tools, dsml_id=dsml_id, most=most_forced_calls(tools) if parallel else 1)
    return Grammar("structural_tag", text, field="tools")


def strict_calls(tools: Mapping[str, Any], *, dsml_id: int, parallel: bool) -> Grammar:
    """Return the grammar of a free answer whose calls, if there are any, are of these tools.

    It begins with the first call, wherever that is. Raises as `forced_call` does.
    """
    require_compiler("tools", what="a tool that is strict")
    text = _calls(tools, dsml_id=dsml_id, most=None if parallel else 1, begun=True)
    return Grammar("structural_tag", text, after=dsml_id, may_end=True, field="tools")


def or_calls(
    grammar: Grammar, tools: Mapping[str, Any], *, dsml_id: int, parallel: bool
) -> Grammar:
    """Return the grammar of an answer that calls these tools, or follows `grammar`.

    Raises GrammarError for tools that calls cannot be held to, BadRequest for one nested too
    deeply.
    """
    calls = _calls(tools, dsml_id=dsml_id, most=None if parallel else 1)
    return msgspec.structs.replace(grammar, calls=calls)


def _calls(tools: Mapping[str, Any], *, dsml_id: int, most: int | None, begun: bool = False) -> str:
    with refusing_depth("tools"):
        text = call_grammar(tools, dsml_id=dsml_id, most=most, begun=begun)
    if len(text) > MAX_GRAMMAR_CHARS:
        raise GrammarError("the tools' schemas are too long to hold a call to", param="tools")
    return text


def format_grammar(
    grammar: Grammar | None,
    form: AnswerFormat,
    forced: Mapping[str, Any] | None,
    held: Mapping[str, Any] | None,
    *,
    parallel: bool,
    reasoning: bool,
    holds: bool,
) -> Grammar | None:
    """Return what an answer in the format of a Jinja template must be; None: anything.

    grammar    what its content must be
    forced     tools of which one must be called, None: none must
    held       tools that may be called, each with its schema if it is strict, else with None
    parallel   whether there may be several calls
    reasoning  whether the answer begins inside the reasoning
    holds      calls that are free to be made are held to `held` and its schemas
    Raises as `forced_call` does.
    """
    if forced is not None:
        require_compiler("tool_choice")
        most = most_forced_calls(forced) if parallel else 1
        text = _format_calls(form, forced, most=most, thinks=not reasoning)
        grammar = Grammar("structural_tag", text, field="tools")
    elif held and grammar is not None:
        calls = _format_calls(form, held, most=None if parallel else 1)
        grammar = msgspec.structs.replace(grammar, calls=calls)
    elif held and holds:
        return _strict_format_calls(form, held, parallel=parallel)
    if grammar is None or not reasoning:
        return grammar
    barred = opening_id(form) if held or forced else None
    return msgspec.structs.replace(grammar, after=form.ids[THINK_END], barred=barred)


def _strict_format_calls(
    form: AnswerFormat, tools: Mapping[str, Any], *, parallel: bool
) -> Grammar:
    require_compiler("tools", what="a tool that is strict")
    opening = opening_id(form)
    if opening is None:
        raise GrammarError(
            "a tool that is strict, and tools that are allowed, cannot be enforced with this model "
            "unless tool_choice requires a call: no token begins its calls",
            param="tools",
        )
    text = _format_calls(form, tools, most=None if parallel else 1, begun=True)
    return Grammar("structural_tag", text, after=opening, may_end=True, field="tools")


def _format_calls(
    form: AnswerFormat,
    tools: Mapping[str, Any],
    *,
    most: int | None,
    begun: bool = False,
    thinks: bool = False,
) -> str:
    with refusing_depth("tools"):
        return format_calls(form, tools, most=most, begun=begun, thinks=thinks)


def require_compiler(param: str, *, what: str = "structured output") -> None:
    """Raise GrammarError where the optional dependency of grammars is not installed."""
    if find_spec("xgrammar") is None:
        raise GrammarError(
            f"{what} needs xgrammar, which this server lacks: "
            "pip install -e '.[grammar]' in Umbra's checkout",
            param=param,
        )


def openai_format(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return `response_format` in OpenAI's form.

    Other servers take `schema` beside the type json_object or json_schema; it means a json_schema.
    Raises BadRequest for a field that would change the output and is not supported.
    """
    form = response_format or {}
    kind = form.get("type", "text")
    given = {name for name in _OF_FORMATS if form.get(name) is not None}
    if kind == "structural_tag" or not given:
        return response_format
    if kind == "json_object" and given == {"schema"} and form["schema"] == {}:
        return {"type": "json_object"}
    if kind in ("json_object", "json_schema") and given == {"schema"}:
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form["schema"]}}
    if kind == "json_schema" and given == {"json_schema"}:
        return response_format
    expected = 'give {"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}'
    listed = " and ".join(sorted(given))
    text = f"response_format of type {str(kind)[:80]} has {listed}: {expected}, or regex or ebnf"
    raise BadRequest(text, param="response_format")


def _of_format(response_format: dict[str, Any] | None) -> Grammar | None:
    form = openai_format(response_format)
    if form is None:
        return None
    kind = form.get("type", "text")
    match kind:
        case "text":
            return None
        case "json_object":
            return Grammar("json_object")
        case "json_schema":
            return Grammar("json_schema", _json(_schema(form), "response_format"))
        case "structural_tag":
            return Grammar("structural_tag", _json(form, "response_format"))
        case _:
            raise BadRequest(
                f"response_format.type must be one of {', '.join(_FORMATS)}, "
                f"got {str(kind)[:80]!r}",
                param="response_format",
            )


def _schema(response_format: dict[str, Any]) -> dict[str, Any] | bool:
    named = response_format.get("json_schema")
    schema = cast(dict[str, Any], named).get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict | bool):
        raise BadRequest(
            "response_format.json_schema.schema must be a JSON schema", param="response_format"
        )
    return cast(dict[str, Any] | bool, schema)


def _json(value: object, name: str) -> str:
    with refusing_depth(name):
        return msgspec.json.encode(value).decode()
