"""Long arrays are decoded in parts, to what decoding at once gives."""

import json
import random
from typing import Any

import msgspec
import pytest

import runtime.server.long_arrays as subject
from runtime.errors import BadRequest
from runtime.server.field_hints import HintedBody
from runtime.server.long_arrays import decode_json, decode_long
from runtime.server.messages_schema import MessagesBody
from runtime.server.prompt import PromptedBody
from runtime.server.tokenize import DetokenizeBody

PART = 64


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of so many bytes count as long."""
    monkeypatch.setattr(subject, "LONG_ARRAY_BYTES", PART)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what is decoded at a stretch."""
    sizes: list[int] = []
    decode = subject.decode_json

    def noted(body: bytes, shape: Any) -> Any:
        sizes.append(len(body))
        return decode(body, shape)

    monkeypatch.setattr(subject, "decode_json", noted)
    return sizes


def ids(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(-5, 100_000) for _ in range(count)]


@pytest.mark.parametrize(
    "array",
    [
        ids(500),
        [*map(float, ids(500))],
        [ids(k % 7) for k in range(200)],
        [ids(3), ids(900), [], ids(2), ids(900), ids(300)],
        [[*map(float, ids(900))], ids(5)],
        [[ids(1)[0]]] * 100,
    ],
)
@pytest.mark.parametrize("blanks", [False, True])
def test_arrays_are_what_they_are_decoded_at_once(
    array: list[Any], blanks: bool, decoded: list[int]
) -> None:
    body = {"rid": "a,b", "input_ids": array, "note": [1] * 200, "priority": 3}
    text = json.dumps(body, indent=2 if blanks else None).encode()

    assert decode_long(text, PromptedBody) == decode_json(text, PromptedBody)
    # The rest of the body, and no more than two parts at a time.
    assert max(decoded[1:]) <= 2 * PART + 2


@pytest.mark.parametrize(
    ("array", "place"),
    [
        ([*ids(300), "x"], "input_ids"),
        ([*ids(300), 1.5], r"input_ids\[300\]"),
        ([*ids(300), None, 4], r"input_ids\[300\]"),
        ([*[[1]] * 90, [2, True]], r"input_ids\[90\]\[1\]"),
        ([[1], [*ids(300), 1.5]], r"input_ids\[1\]\[300\]"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(array: list[Any], place: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=place):
        decode_long(json.dumps({"input_ids": array}).encode(), PromptedBody)


@pytest.mark.parametrize(
    "array", [[[1], *ids(400)], [[[1], [2]]] * 40, [[*ids(300), [1] * 50, *ids(100)]]]
)
def test_mixtures_are_refused(array: list[Any]) -> None:
    with pytest.raises((BadRequest, msgspec.ValidationError), match="input_ids"):
        decode_long(json.dumps({"input_ids": array}).encode(), PromptedBody)


def test_lists_are_refused_where_numbers_are_wanted() -> None:
    body = json.dumps({"tokens": [ids(300), ids(300)]}).encode()

    with pytest.raises(msgspec.ValidationError, match="int"):
        decode_long(body, DetokenizeBody)


def test_only_arrays_of_numbers_may_have_so_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_OTHER_VALUES", 300)
    schema = {"enum": ids(400)}
    body = {"input_ids": ids(500), "sampling_params": {"json_schema": schema}}

    with pytest.raises(BadRequest, match="more than 300 values besides"):
        decode_long(json.dumps(body).encode(), PromptedBody)
    commas = {"input_ids": ids(500), "rid": "," * 500, "other": ids(500)}
    assert decode_long(json.dumps(commas).encode(), PromptedBody).rid == "," * 500


@pytest.mark.parametrize("shape", [*HintedBody.__subclasses__(), DetokenizeBody, MessagesBody])
def test_bodies_of_all_dialects_can_have_long_arrays(shape: type[msgspec.Struct]) -> None:
    try:
        expected = decode_json(b'{"unknown": 1}', shape)
    except msgspec.ValidationError as fault:
        with pytest.raises(msgspec.ValidationError, match=str(fault)[:30]):
            decode_long(b'{"unknown": 1}', shape)
    else:
        assert decode_long(b'{"unknown": 1}', shape) == expected
