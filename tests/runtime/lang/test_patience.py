"""Tests of runtime.lang.patience."""

import asyncio
from typing import Any

import pytest

from runtime.errors import BadRequest, QueueFull
from runtime.lang.patience import FIRST_PAUSE_S, LONGEST_PAUSE_S, patiently


class Asked:
    """Raises its errors one after the other, then answers.

    slept  seconds that were waited between
    """

    def __init__(self, *errors: Exception) -> None:
        self.slept: list[float] = []
        self._errors = list(errors)

    async def answer(self) -> str:
        """Answer, in the end."""
        if self._errors:
            raise self._errors.pop(0)
        return "yes"

    async def sleep(self, seconds: float) -> None:
        """Wait no time."""
        self.slept.append(seconds)


def ask(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("asyncio.sleep", asked.sleep)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    return asyncio.run(patiently(asked.answer))


def test_pauses_grow_and_are_no_shorter_than_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(*(QueueFull("full", retry_after_s=30 * (k == 1)) for k in range(6)))

    assert ask(asked, monkeypatch) == "yes"
    assert asked.slept[:3] == [FIRST_PAUSE_S, 30 + 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert asked.slept[-1] == LONGEST_PAUSE_S


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.lang.patience.PATIENCE_S", -1.0)

    with pytest.raises(QueueFull):
        ask(Asked(QueueFull("full")), monkeypatch)


def test_other_refusals_come_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(BadRequest("no"))

    with pytest.raises(BadRequest):
        ask(asked, monkeypatch)
    assert asked.slept == []


def test_nobody_waits_longer_than_patience_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(QueueFull("full", retry_after_s=86400))

    with pytest.raises(QueueFull):
        ask(asked, monkeypatch)
    assert asked.slept == []
