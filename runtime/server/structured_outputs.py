"""`structured_outputs`: the grammar of the output, in the fields of vLLM's clients."""

import json
from typing import Any

import msgspec

from runtime.errors import BadRequest
from runtime.messages import Grammar
from runtime.server.fields import refusing_depth

_FIELD = "structured_outputs"


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One grammar, in one of these fields; null and false mean that it is another.

    json         a JSON schema, as an object or as text
    regex        a pattern
    choice       texts, one of which the output is
    grammar      EBNF
    json_object  any JSON object
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None

    def as_grammar(self) -> Grammar | None:
        """Return the grammar; None where there is none. Raises BadRequest for several."""
        given = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) not in (None, False)
        }
        if len(given) > 1:
            text = f"an output follows one grammar, {_FIELD} has {', '.join(given)}"
            raise BadRequest(text, param=_FIELD)
        for name, value in given.items():
            return _grammar(name, value)
        return None


def _grammar(name: str, value: Any) -> Grammar:
    match name:
        case "json_object":
            return Grammar("json_object")
        case "choice":
            if not value:
                raise BadRequest(f"{_FIELD}.choice has no texts", param=_FIELD)
            texts = (json.dumps(text, ensure_ascii=False) for text in value)
            return Grammar("ebnf", f"root ::= {' | '.join(texts)}")
        case "grammar":
            return Grammar("ebnf", value)
        case "regex":
            return Grammar("regex", value)
        case _:
            with refusing_depth(_FIELD):
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            return Grammar("structural_tag" if name == "structural_tag" else "json_schema", text)
