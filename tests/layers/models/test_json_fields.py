"""Checked access to JSON fields."""

import math
from typing import Any

import pytest

from layers.models.json_fields import (
    ConfigFault,
    int_from,
    json_object,
    positive_int,
    positive_number,
    require,
    string_list,
)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, 0, -1, [1]])
def test_a_positive_integer_is_nothing_else(value: object) -> None:
    with pytest.raises(ConfigFault, match=r"^outer\.size must be an integer of at least 1"):
        positive_int({"size": value}, "size", "outer.")


@pytest.mark.parametrize("value", [True, "1", None, 0, -0.5, math.nan, math.inf, 10**400])
def test_a_positive_number_is_finite_and_no_boolean(value: object) -> None:
    with pytest.raises(ConfigFault, match=r"^eps must be a positive number"):
        positive_number({"eps": value}, "eps")


def test_good_values_come_back_with_their_type() -> None:
    assert positive_int({"size": 3}, "size") == 3
    assert int_from({"size": 0}, "size", 0) == 0
    assert isinstance(positive_number({"eps": 2}, "eps"), float)
    assert string_list({"kinds": ["a", "b"]}, "kinds", ("a", "b")) == ["a", "b"]


def test_a_missing_field_is_named_with_its_path() -> None:
    with pytest.raises(ConfigFault, match=r"^outer\.size is missing$"):
        positive_int({}, "size", "outer.")


@pytest.mark.parametrize(("value", "fits"), [(1, True), (True, False), (2, False), (None, True)])
def test_require_tells_one_from_true(value: object, fits: bool) -> None:
    raw: dict[str, Any] = {"heads": value}
    if fits:
        require(raw, "heads", (1, None))
    else:
        with pytest.raises(ConfigFault, match=r"^heads must be 1, got"):
            require(raw, "heads", (1, None))


@pytest.mark.parametrize("value", ["a", ["c"], [1], None])
def test_a_list_of_other_strings_is_refused(value: object) -> None:
    with pytest.raises(ConfigFault, match=r"^kinds must be a list of a or b"):
        string_list({"kinds": value}, "kinds", ("a", "b"))


def test_an_object_is_no_list() -> None:
    with pytest.raises(ConfigFault, match=r"^the file must be a JSON object"):
        json_object([], "the file")
