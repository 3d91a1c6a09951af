"""The messages of a step are plain data and survive the wire."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from runtime.wire.step import (
    FromExecutor,
    Joint,
    KeptResult,
    Sample,
    SampleKept,
    StepPlan,
    StepResult,
    ToExecutor,
)
from tests.runtime.wire.samples import JOINT, KEPT_RESULT, PLAN, RESULT, SAMPLE, SAMPLE_KEPT

PLAIN = (
    inspect.BoolType,
    inspect.BytesType,
    inspect.FloatType,
    inspect.IntType,
    inspect.NoneType,
    inspect.StrType,
)
MESSAGES = [
    *((ToExecutor, message) for message in (PLAN, JOINT, SAMPLE, SAMPLE_KEPT)),
    *((FromExecutor, message) for message in (RESULT, KEPT_RESULT)),
]


def others(where: str, kind: inspect.Type, seen: set[type]) -> Iterator[str]:
    """Yield the fields that are neither plain data nor structs, lists and unions of it."""
    if isinstance(kind, inspect.UnionType):
        for part in kind.types:
            yield from others(where, part, seen)
    elif isinstance(kind, inspect.ListType):
        yield from others(f"{where}[]", kind.item_type, seen)
    elif isinstance(kind, inspect.StructType):
        if kind.cls not in seen:
            seen.add(kind.cls)
            for field in kind.fields:
                yield from others(f"{where}.{field.name}", field.type, seen)
    elif not isinstance(kind, PLAIN):
        yield f"{where} is {kind}"


@pytest.mark.parametrize("message", [StepPlan, Joint, Sample, SampleKept, StepResult, KeptResult])
def test_a_message_holds_nothing_but_plain_data(message: type) -> None:
    seen: set[type] = set()

    assert not list(others(message.__name__, inspect.type_info(message), seen))
    assert message in seen


def test_the_walk_finds_what_is_not_plain() -> None:
    class Inner(msgspec.Struct):
        anything: object

    class Outer(msgspec.Struct):
        inner: list[Inner] | None
        table: dict[str, int]

    found = list(others("Outer", inspect.type_info(Outer), set()))

    assert [text.split(" is ")[0] for text in found] == ["Outer.inner[].anything", "Outer.table"]


@pytest.mark.parametrize(("union", "message"), MESSAGES)
def test_a_message_comes_back_as_it_was(union: Any, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)

    assert msgspec.msgpack.decode(data, type=union) == message


@pytest.mark.parametrize(("_", "message"), MESSAGES)
def test_the_samples_leave_out_no_field(_: Any, message: msgspec.Struct) -> None:
    """Otherwise a field that does not survive could go unnoticed."""
    for field in msgspec.structs.fields(message):
        default = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        assert getattr(message, field.name) != default, field.name


def test_messages_of_one_direction_are_none_of_the_other() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(PLAN), type=FromExecutor)
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(RESULT), type=ToExecutor)
