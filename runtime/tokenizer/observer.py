"""What the token stream tells whoever measures it."""

from typing import Protocol


class Observer(Protocol):
    """Hears of every event that metrics are made of. Durations in seconds."""

    def first_token(self, seconds: float) -> None:
        """Note the time from a call to the first token of one of its choices."""
        ...

    def inter_token(self, seconds: float, tokens: int) -> None:
        """Note that `tokens` tokens came, each `seconds` after the one before it."""
        ...

    def finished(
        self,
        reason: str,
        *,
        seconds: float,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
    ) -> None:
        """Note the end of a choice: "stop", "length", "abort" or "error"."""
        ...

    def refused(self, reason: str) -> None:
        """Note a call that was not admitted: "queue_full", "too_long", "bad_request" ..."""
        ...


class NoObserver:
    """An observer that does not look."""

    def first_token(self, seconds: float) -> None:
        """Do nothing."""

    def inter_token(self, seconds: float, tokens: int) -> None:
        """Do nothing."""

    def finished(
        self,
        reason: str,
        *,
        seconds: float,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
    ) -> None:
        """Do nothing."""

    def refused(self, reason: str) -> None:
        """Do nothing."""
