"""Messages between processes: what is none is dropped or refused, what is one comes back."""

import os

import msgspec

from runtime.ipc import Codec
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
)
from runtime.wire.rank_line import RankLine, RankLineReader
from runtime.wire.step import FromExecutor, ToExecutor
from tests.fuzz.mutation import damaged_bytes
from tests.fuzz.target import Target, assert_one_line
from tests.runtime.wire.samples import JOINT, KEPT_RESULT, PLAN, RESULT, SAMPLE, SAMPLE_KEPT

_SAMPLING = Sampling(max_new_tokens=3, seed=2**63, logit_bias={5: -1.0})
_GRAMMAR = Sampling(1, 2, grammar=Grammar("regex", "a", 4, True, 5, "b", "regex"))
_SAMPLES = (
    *(PLAN, JOINT, SAMPLE, SAMPLE_KEPT, RESULT, KEPT_RESULT),
    Generate(7, pack_ids([1, 2]), _SAMPLING, Logprobs(2, 3, (4,)), namespace="n"),
    Generate(8, b"", _GRAMMAR, stream=False),
    *(Abort([1, 2]), Stop([3]), Refused(1, "too_long", "x")),
    Outputs([Output(1, [2], finish="stop", logprobs=TokenLogprobs([None], [3], [[]], [[]]))]),
)
_UNIONS = (ToScheduler, FromScheduler, ToExecutor, FromExecutor)
_LINES = [msgspec.json.encode(RankLine(tracing)) + b"\n" for tracing in (True, False)]


def _check(data: bytes) -> None:
    for union in _UNIONS:
        message = Codec[object](union).decode(data)
        if message is None:
            continue
        again = msgspec.msgpack.encode(message)
        # Bytes are compared: a NaN is not equal to itself.
        assert msgspec.msgpack.encode(msgspec.msgpack.decode(again, type=union)) == again


def _check_lines(data: bytes) -> None:
    reading, writing = os.pipe()
    reader = RankLineReader(reading)
    try:
        os.write(writing, data[:4096])
        lines = reader.read()
        assert all(isinstance(line, RankLine) for line in lines)
    except msgspec.DecodeError as fault:
        assert_one_line(fault)
    finally:
        os.close(writing)
        reader.close()


MESSAGES = Target(
    "messages", damaged_bytes([msgspec.msgpack.encode(one) for one in _SAMPLES]), _check, 150
)
RANK_LINES = Target("rank_lines", damaged_bytes(_LINES), _check_lines)
