"""Packed log-probabilities as clients are told them."""

import math

import msgspec
import pytest

from runtime.packed_logprobs import (
    PackedLogprobs,
    PromptLogprobs,
    TokenLogprobs,
    unpack_logprobs,
)
from runtime.wire.arrays import FLOAT32, INT32, packed


def pack(
    ids: list[int], values: list[list[float]], best: list[list[int]], *, top: int
) -> PackedLogprobs:
    return PackedLogprobs(
        top, packed(ids, INT32), packed(values, FLOAT32), packed(best, INT32) if top else b""
    )


def test_own_likeliest_and_asked_tokens_each_get_their_value() -> None:
    told = pack([7, 9], [[-1, -0.5, -2, -4], [-3, 0, -1.5, -8]], [[3, 7], [4, 1]], top=2)

    assert unpack_logprobs(told, (11,)) == TokenLogprobs(
        values=[-1.0, -3.0],
        ids=[7, 9],
        top=[[(-0.5, 3), (-2.0, 7)], [(0.0, 4), (-1.5, 1)]],
        picked=[[(-4.0, 11)], [(-8.0, 11)]],
    )


def test_asked_tokens_come_in_the_order_of_the_request() -> None:
    told = pack([7], [[-1, -2, -3]], [], top=0)

    assert unpack_logprobs(told, [30, 20]) == TokenLogprobs(
        values=[-1.0], ids=[7], picked=[[(-2.0, 30), (-3.0, 20)]]
    )


def test_what_is_not_asked_for_is_not_told() -> None:
    assert unpack_logprobs(pack([7], [[-1]], [], top=0), ()) == TokenLogprobs([-1.0], [7])
    assert unpack_logprobs(pack([7], [[-1, -1]], [[7]], top=1), ()) == TokenLogprobs(
        [-1.0], [7], top=[[(-1.0, 7)]]
    )


@pytest.mark.parametrize(("top", "asked"), [(0, ()), (2, ()), (0, (5,)), (2, (5, 6))])
def test_no_positions_tell_nothing(top: int, asked: tuple[int, ...]) -> None:
    assert unpack_logprobs(PackedLogprobs(top, b"", b""), asked) == TokenLogprobs([], [])


def test_a_position_that_is_not_finite_has_no_values_and_can_be_sent_as_json() -> None:
    nothing = [math.nan] * 3
    told = pack([7, 8], [nothing, [-1, -2, -3]], [[0], [4]], top=1)

    got = unpack_logprobs(told, (5,))

    assert got == TokenLogprobs(
        values=[None, -1.0], ids=[7, 8], top=[[], [(-2.0, 4)]], picked=[[], [(-3.0, 5)]]
    )
    assert b"nan" not in msgspec.json.encode(got).lower()


def test_values_are_the_float32_that_were_packed() -> None:
    told = pack([1], [[-0.1]], [], top=0)

    [value] = unpack_logprobs(told, ()).values

    assert value is not None
    assert packed([value], FLOAT32) == told.values


def test_parts_of_a_prompt_are_those_of_the_whole() -> None:
    spans = [
        pack([7, 9], [[-1, -2, -3, -5], [-3, -4, -5, -6]], [[3, 1], [4, 2]], top=2),
        pack([8], [[-7, -8, -8.5, -9]], [[5, 3]], top=2),
    ]
    prompt = PromptLogprobs(6, 2, (30,), spans)
    whole = prompt.part(0, None)

    assert len(prompt) == 4
    assert prompt.size_bytes == 4 * 3 * (1 + 4 + 2)
    assert prompt.values == whole.values == [None, -1.0, -3.0, -7.0]
    assert whole.ids == [6, 7, 9, 8]
    assert whole.top == [
        [],
        [(-2.0, 3), (-3.0, 1)],
        [(-4.0, 4), (-5.0, 2)],
        [(-8.0, 5), (-8.5, 3)],
    ]
    assert whole.picked == [[], [(-5.0, 30)], [(-6.0, 30)], [(-9.0, 30)]]
    for start in range(5):
        for stop in (*range(start, 6), None):
            assert prompt.part(start, stop) == whole.part(start, stop), (start, stop)


def test_a_prompt_without_more_tokens_has_the_first_one_alone() -> None:
    assert PromptLogprobs(6).part(0, None) == TokenLogprobs([None], [6])
    assert PromptLogprobs(6, 2).part(0, 9) == TokenLogprobs([None], [6], top=[[]])
