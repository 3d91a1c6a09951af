"""Messages about profiles keep what they carry."""

import msgspec
import pytest

from runtime.messages import FromScheduler, ToScheduler
from runtime.profile_messages import Profiled, StartProfile, StopProfile


@pytest.mark.parametrize(
    "message", [StartProfile(1), StartProfile(2, "a", 7, 3, gpu=False, stacks=True), StopProfile(3)]
)
def test_messages_to_the_scheduler_survive_the_wire(message: ToScheduler) -> None:
    data = msgspec.msgpack.encode(message)

    assert msgspec.msgpack.decode(data, type=ToScheduler) == message


def test_answers_survive_the_wire() -> None:
    message = Profiled(4, True, "tracing", "/traces/x.trace.json.gz")

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromScheduler) == message
