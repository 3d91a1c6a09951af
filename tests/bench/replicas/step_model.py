"""How long a simulated server takes for a step."""

import bisect
from dataclasses import dataclass

# V4-Flash, all 43 layers, on two H200s: ms between tokens at 8,192 tokens of context by rows, and
# the rate of a prompt of 8,192 tokens (364 ms). Source: README.md, "Several GPUs"; how they were
# measured is in tests/bench/LOG.md, "All of V4-Flash on several GPUs".
MEASURED_ROWS = (1, 16, 64, 128)
MEASURED_DECODE_MS = (4.4, 11.5, 21.0, 27.0)
MEASURED_PREFILL = 8192 / 0.364


@dataclass(frozen=True, slots=True)
class StepModel:
    """A server's speed.

    prefill_rate  prompt tokens a second. Decoding is slower than measured by as much as this is
    decodes       False: answers end with their first token
    chunk_tokens  of prompts in a step, together
    rows          requests that may run at once
    """

    prefill_rate: float
    decodes: bool = True
    chunk_tokens: int = 2048
    rows: int = 64

    def decode_s(self, rows: int) -> float:
        """Return the seconds that one token for each of `rows` takes; 0 for none."""
        if rows == 0:
            return 0.0
        stretch = MEASURED_PREFILL / self.prefill_rate / 1000
        at = min(max(1, bisect.bisect_left(MEASURED_ROWS, rows)), len(MEASURED_ROWS) - 1)
        (low, high), (fast, slow) = (
            MEASURED_ROWS[at - 1 : at + 1],
            MEASURED_DECODE_MS[at - 1 : at + 1],
        )
        return stretch * (fast + (slow - fast) * (rows - low) / (high - low))

    def step_s(self, prompt_tokens: int, rows: int) -> float:
        """Return the seconds of a step with prompt tokens and decoding rows: the sum of both."""
        return prompt_tokens / self.prefill_rate + self.decode_s(rows)
