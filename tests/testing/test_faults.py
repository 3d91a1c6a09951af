"""The fault helpers do what the tests that use them believe."""

import pytest

from tests.testing.faults import JumpingClock, fail_call


class _Allocator:
    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0

    def take(self, count: int) -> int:
        self.taken += count
        return self.taken


def test_only_the_numbered_call_fails_and_it_changes_nothing() -> None:
    first, second = _Allocator(), _Allocator()

    with fail_call(_Allocator, "take", number=2, error=lambda: MemoryError("told to")) as count:
        assert first.take(1) == 1
        with pytest.raises(MemoryError, match="told to"):
            second.take(1)
        assert second.take(5) == 5

    assert count.raised
    assert count.calls == 3
    assert first.take(1) == 2


def test_the_clock_moves_only_when_told() -> None:
    clock = JumpingClock(10.0)

    assert clock() == clock() == 10.0
    clock.advance(-3.0)
    assert clock() == 7.0
