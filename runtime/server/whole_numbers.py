"""Whole numbers that are written as floats: JSON has one type of number, so 16.0 means 16."""

from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

_Shape = TypeVar("_Shape", bound=msgspec.Struct)


def as_shape(value: Any, shape: type[_Shape]) -> _Shape:
    """Return decoded JSON as a `shape`, with whole floats as integers where it takes only those.

    `value` may be changed. Raises msgspec.ValidationError.
    """
    try:
        return msgspec.convert(value, shape, str_keys=True)
    except msgspec.ValidationError as fault:
        if not is_of_float(fault):
            raise
    return msgspec.convert(_integers(value, _type_info(shape)), shape, str_keys=True)


def is_of_float(fault: msgspec.ValidationError) -> bool:
    """Whether a value was refused because it is a float."""
    return "got `float`" in str(fault)


@lru_cache(maxsize=64)
def _type_info(shape: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(shape)


def _integers(value: Any, kind: inspect.Type) -> Any:
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if isinstance(value, list):
        items = cast(list[Any], value)
        inner = next((each for each in kinds if isinstance(each, inspect.ListType)), None)
        return items if inner is None else _list_of(items, inner.item_type)
    if isinstance(value, dict):
        record = cast(dict[str, Any], value)
        for each in kinds:
            if isinstance(each, inspect.StructType):
                for field in each.fields:
                    if field.encode_name in record:
                        old = record[field.encode_name]
                        record[field.encode_name] = _integers(old, field.type)
        return record
    return int(value) if _is_whole(value) and _takes_integers(kind) else value


def _list_of(items: list[Any], kind: inspect.Type) -> list[Any]:
    """Return a list, which may have a million numbers, with its whole floats as integers."""
    if not _takes_integers(kind):
        return [_integers(item, kind) for item in items]
    return [
        int(item) if _is_whole(item) else _integers(item, kind) if type(item) is list else item
        for item in items
    ]


def _is_whole(value: Any) -> bool:
    return type(value) is float and value.is_integer()


def _takes_integers(kind: inspect.Type) -> bool:
    """Whether a number in this place must be an integer."""
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    if any(isinstance(each, inspect.FloatType | inspect.AnyType) for each in kinds):
        return False
    return any(isinstance(each, inspect.IntType) for each in kinds)
