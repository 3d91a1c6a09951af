"""Messages keep what they carry, and token ids travel as bytes."""

import msgspec
import numpy as np
import pytest

from runtime.messages import (
    Abort,
    FromScheduler,
    Generate,
    Grammar,
    Logprobs,
    Output,
    Outputs,
    Refused,
    Sampling,
    Stop,
    TokenLogprobs,
    ToScheduler,
    pack_ids,
    unpack_ids,
)
from tests.testing.prompt_logprobs import packed_prompt


@pytest.mark.parametrize(
    "ids", [[], [0], [1, 2, 2**31 - 1], list(range(1000)), np.arange(5, dtype=np.int64)]
)
def test_ids_come_back_as_they_were_packed(ids: list[int] | np.ndarray) -> None:
    packed = pack_ids(ids)

    assert len(packed) == 4 * len(ids)
    assert unpack_ids(packed).tolist() == list(ids)


def test_unpacked_ids_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        unpack_ids(pack_ids([1, 2]))[0] = 3


@pytest.mark.parametrize(
    "message",
    [
        Generate(7, pack_ids([1, 2]), Sampling(max_new_tokens=3, seed=2**63, logit_bias={5: -1.0})),
        Generate(8, b"", Sampling(0, 1), Logprobs(2, 3, (4,)), namespace="n", stream=False),
        Generate(9, b"", Sampling(0, 1), background=True),
        Abort([1, 2]),
        Stop([3]),
        Generate(3, b"", Sampling(1, 2, grammar=Grammar("regex", "a", 4, True, 5, "b", "regex"))),
    ],
)
def test_messages_to_the_scheduler_survive_the_wire(message: ToScheduler) -> None:
    data = msgspec.msgpack.encode(message)

    assert msgspec.msgpack.decode(data, type=ToScheduler) == message


def test_messages_from_the_scheduler_survive_the_wire() -> None:
    logprobs = TokenLogprobs([None, -0.5], [3, 4], [[], [(-0.5, 4)]], [[(-1.0, 9)], []])
    prompt = packed_prompt(TokenLogprobs([None, -0.5], [3, 4], [[], [(-0.5, 4)]]))
    output = Output(
        1,
        [2, 3],
        finish="stop",
        matched_stop=3,
        queue_s=0.5,
        prompt_logprobs=prompt,
        logprobs=logprobs,
    )
    message = Outputs([output])
    data = msgspec.msgpack.encode(message)

    assert msgspec.msgpack.decode(data, type=FromScheduler) == message


def test_parts_of_log_probabilities_joined_are_the_whole() -> None:
    told = TokenLogprobs([None, -0.5, -1.0], [3, 4, 5], [[], [(-0.5, 4)], [(-1.0, 5)]])
    joined = told.part(0, 1)

    for more in (told.part(1, 3), None):
        joined.extend(more)

    assert (joined, told.ids) == (told, [3, 4, 5])


def test_a_reason_that_is_none_of_the_known_ones_is_refused() -> None:
    data = msgspec.msgpack.encode(Refused(1, "too_long", "x")).replace(b"too_long", b"too_wide")

    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=FromScheduler)
