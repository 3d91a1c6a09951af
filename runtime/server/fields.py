"""Python values as a request body: checked, and told what is wrong, as JSON is."""

import difflib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from runtime.errors import BadRequest, BadSampling, GrammarError
from runtime.server.field_hints import FieldHints, hints_of
from runtime.server.whole_numbers import as_shape

_Shape = TypeVar("_Shape", bound=msgspec.Struct)
_INDEX = re.compile(r"\[\d+\]")
_FIELD = re.compile(r"(?:contains unknown|missing required) field `([^`]{1,80})`")
_WHERE = re.compile(r"^(?P<what>.*?) - at (?:`key` in )?`\$\.(?P<path>.+)`$", re.DOTALL)


def as_body(values: Mapping[str, Any], shape: type[_Shape]) -> _Shape:
    """Return `values` as a `shape`, which shares nothing with the caller's lists.

    Arrays count as lists, and keys of a mapping may be digits, as in JSON. Raises TypeError for a
    name that `shape` does not have, BadRequest (naming the field) for a value that does not fit.
    """
    known, hints = shape.__struct_fields__, hints_of(shape)
    for name in values.keys() - set(known):
        if hints.text(name):
            hints.refuse(name, values[name])
            continue
        near = difflib.get_close_matches(name, known, n=1)
        hint = f": did you mean {near[0]}?" if near else ""
        raise TypeError(f"unexpected argument {name!r}{hint}")
    try:
        plain = msgspec.msgpack.decode(msgspec.msgpack.encode(values, enc_hook=_as_list))
        return as_shape(plain, shape)
    except msgspec.ValidationError as fault:
        raise field_error(str(fault), hints) from fault
    except UnicodeEncodeError as fault:
        raise BadRequest(f"text with a lone surrogate is no text: {fault}") from fault
    except RecursionError as fault:
        raise BadRequest("the values are nested too deeply") from fault
    except (TypeError, ValueError, OverflowError) as fault:
        raise BadRequest(f"the values are no request: {fault}") from fault


def field_error(text: str, hints: FieldHints) -> BadRequest:
    """Return msgspec's complaint `text` as an error that names the field, with a hint on it."""
    found = _WHERE.match(text)
    if found is None:
        return BadRequest(f"the body is not a request: {text}")
    path = found["path"]
    place, field = _INDEX.sub("", path), _FIELD.search(found["what"])
    what = found["what"] + hints.text(place if field is None else f"{place}.{field[1]}")
    return BadRequest(f"{path}: {what}", param=re.split(r"[.\[]", path, maxsplit=1)[0])


@contextmanager
def refusing_depth(name: str) -> Iterator[None]:
    """Let the value of field `name` be refused where it is nested too deeply to be walked.

    Decoding bounds it, too, but from another depth of calls.
    """
    try:
        yield
    except RecursionError as fault:
        raise BadRequest(f"{name}: nested too deeply", param=name) from fault


@contextmanager
def called_here(names: Mapping[str, str]) -> Iterator[None]:
    """Let a refusal of a sampling field or a grammar use the names of the client's body.

    names  of fields of a spec -> those of the body
    """
    try:
        yield
    except BadSampling as fault:
        param = names.get(fault.param or "")
        if param is None:
            raise
        text = fault.message
        for name, here in names.items():
            # What the client gave may spell a name, too, but stands behind.
            text = text.replace(name, here, 1)
        raise BadRequest(text, param=param) from fault
    except GrammarError as fault:
        raise GrammarError(
            fault.message, param=names.get(fault.param or "", fault.param)
        ) from fault


def _as_list(value: Any) -> Any:
    if hasattr(value, "tolist"):  # of numpy or torch, which need not be there
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is nothing that JSON could say")
