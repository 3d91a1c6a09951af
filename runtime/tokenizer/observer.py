"""What the token stream tells whoever measures it."""

from dataclasses import dataclass
from typing import Literal

from runtime.messages import Output

# tokenize         from the call to its requests' way to the scheduler
# prefill_waiting  without a row
# prefill_forward  with one, until the prompt is computed
# decode_forward   from then to the end
# Names: SGLang's, where its dashboards tell stages apart.
Stage = Literal["tokenize", "prefill_waiting", "prefill_forward", "decode_forward"]


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How a choice of a call ended.

    reason    "stop", "length", "abort" or "error"
    index     of the choice in its call
    seconds   since the call came in
    decode_s  from its first token on; None where it was cut off
    """

    reason: str
    index: int
    seconds: float
    decode_s: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class Observer:
    """Hears of every event that metrics are made of, and does nothing. Durations in seconds.

    traced  whether the scheduler is to tell more of a call, see `Generate.traced`
    """

    traced = False

    def of_call(self, label: str | None, *, started_s: float) -> "Observer":
        """Return the observer of one call.

        label      the client's name for it
        started_s  clock reading when it arrived
        """
        return self

    def stage(self, stage: Stage, seconds: float) -> None:
        """Note how long a choice was in a stage that has ended."""

    def begun(self, index: int, first: Output) -> None:
        """Note the first output of a choice of the call."""

    def first_token(self, seconds: float) -> None:
        """Note the time from a call to the first token of one of its choices."""

    def inter_token(self, seconds: float, tokens: int) -> None:
        """Note that `tokens` tokens came, each `seconds` after the one before it."""

    def finished(self, end: ChoiceEnd) -> None:
        """Note the end of a choice of the call."""

    def refused(self, reason: str) -> None:
        """Note a call that was not admitted: "QueueFull", "PromptTooLong", "BadRequest" ..."""
