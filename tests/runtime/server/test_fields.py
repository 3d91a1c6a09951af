"""Tests of runtime.server.fields: what Python may say is what JSON may say."""

from typing import Any

import msgspec
import numpy as np
import pytest

from runtime.errors import BadRequest, BadSampling
from runtime.server.fields import as_body, called_here, refusing_depth
from runtime.server.native_schema import GenerateBody


def test_values_become_a_body_that_shares_nothing_with_them() -> None:
    ids = [1, 2]

    body = as_body({"input_ids": ids, "sampling_params": {"stop": ("a",)}}, GenerateBody)
    ids.append(3)

    assert body.input_ids == [1, 2]
    assert not isinstance(body.sampling_params, list | None)
    assert body.sampling_params.stop == ["a"]


def test_arrays_count_as_lists_and_digits_as_keys() -> None:
    values = {
        "input_ids": np.array([[1], [2]]),
        "sampling_params": [{"logit_bias": {"5": 1.0}}, {"logit_bias": {6: np.float64(2)}}],
    }

    body = as_body(values, GenerateBody)

    assert body.input_ids == [[1], [2]]
    assert isinstance(body.sampling_params, list)
    assert [p.logit_bias for p in body.sampling_params] == [{5: 1.0}, {6: 2.0}]


@pytest.mark.parametrize(
    ("values", "param", "hint"),
    [
        ({"text": 7}, "text", "Expected"),
        ({"sampling_params": {"temperature": "hot"}}, "sampling_params", "temperature: Expected"),
        ({"input_ids": ["a"]}, "input_ids", r"input_ids\[0\]: Expected"),
        ({"text": "\ud800"}, None, "surrogate"),
        ({"priority": 1 << 70}, None, "serialize ints"),
        ({"text": object()}, None, "nothing that JSON could say"),
    ],
)
def test_a_value_that_does_not_fit_is_told(
    values: dict[str, Any], param: str | None, hint: str
) -> None:
    with pytest.raises(BadRequest, match=hint) as told:
        as_body(values, GenerateBody)

    assert told.value.param == param


def test_endless_nesting_is_told() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(BadRequest, match="nested"):
        as_body({"input_ids": loop}, GenerateBody)


def test_a_value_too_deep_to_be_walked_is_told_with_its_name() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}

    with pytest.raises(BadRequest, match="tools: nested") as told, refusing_depth("tools"):
        msgspec.json.encode(deep)

    assert told.value.param == "tools"


def test_a_sampling_field_is_refused_by_the_name_it_was_sent_under() -> None:
    names = {"stop": "stop_sequences"}

    with pytest.raises(BadRequest) as told, called_here(names):
        raise BadSampling("stop", "strings of 1 to 9 characters", "don't stop")
    with pytest.raises(BadSampling) as kept, called_here(names):
        raise BadSampling("n", "1", "stop")

    assert told.value.param == "stop_sequences"
    assert told.value.message == (
        'stop_sequences must be strings of 1 to 9 characters, got "don\'t stop"'
    )
    assert (kept.value.param, kept.value.message) == ("n", "n must be 1, got 'stop'")


def test_an_unknown_name_is_an_error_with_the_nearest_known() -> None:
    with pytest.raises(TypeError, match="did you mean cache_salt"):
        as_body({"cache_sald": "x"}, GenerateBody)
    with pytest.raises(TypeError, match=r"'zzzzzz'$"):
        as_body({"zzzzzz": 1}, GenerateBody)
