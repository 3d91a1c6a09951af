"""What was seen of one request, from its first byte sent to its last byte received."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """Times are readings of one clock, in seconds.

    sent_s         the body is ready, the connection is not yet asked for
    ended_s        the reply is complete, or failed
    arrivals       (when, output tokens so far), one for each time that tokens came
    prompt_tokens, output_tokens, cached_tokens   as the server counts; None where it does not
    answer_ids     as far as the server tells them
    answer_text    without reasoning
    reasoned       whether there was reasoning, which the next turn does not repeat
    error          what went wrong; None for a good reply
    """

    sent_s: float = 0.0
    ended_s: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    answer_ids: list[int] = field(default_factory=list)
    answer_text: str = ""
    reasoned: bool = False
    error: str | None = None

    def arrived(self, now_s: float, tokens: int) -> None:
        """Note that there are `tokens` output tokens by now; says nothing where that is no news."""
        if tokens > self.seen_tokens:
            self.arrivals.append((now_s, tokens))

    @property
    def seen_tokens(self) -> int:
        """Output tokens that came while streaming."""
        return self.arrivals[-1][1] if self.arrivals else 0

    @property
    def generated(self) -> int:
        """Output tokens as the server counts them, else as they were seen."""
        return self.seen_tokens if self.output_tokens is None else self.output_tokens

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None where none came."""
        return self.arrivals[0][0] - self.sent_s if self.arrivals else None

    @property
    def e2e_s(self) -> float:
        """Seconds to the end of the reply."""
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds a token after the first; None for fewer than two tokens."""
        if self.generated < 2 or not self.arrivals:
            return None
        return (self.ended_s - self.arrivals[0][0]) / (self.generated - 1)

    def gaps_s(self) -> list[float]:
        """Return the seconds between tokens; tokens that came together share theirs equally."""
        gaps: list[float] = []
        for (before_s, fewer), (now_s, more) in zip(self.arrivals, self.arrivals[1:], strict=False):
            gaps += [(now_s - before_s) / (more - fewer)] * (more - fewer)
        return gaps
