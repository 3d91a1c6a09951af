"""Checked access to metadata."""

import pytest

from runtime.errors import ConfigError
from runtime.gguf.metadata import Metadata

META = Metadata({"count": 3, "rate": 0.5, "flag": True, "name": "x"})


def test_values_have_their_kind() -> None:
    assert META.get("count", int) == 3
    assert META.get("count", float) == 3.0
    assert META.get("flag", bool) is True
    assert META.get("other", str, "y") == "y"
    assert ("name" in META, "other" in META) == (True, False)


@pytest.mark.parametrize(("key", "kind"), [("other", int), ("flag", int), ("name", int)])
def test_what_is_missing_or_of_another_kind_is_named(key: str, kind: type) -> None:
    with pytest.raises(ConfigError, match=key):
        META.get(key, kind)


def test_another_value_than_those_allowed_is_named() -> None:
    META.require("name", "x", "y")
    META.require("other", 1)
    with pytest.raises(ConfigError, match="count of a GGUF file must be 4 or 5, got 3"):
        META.require("count", 4, 5)
