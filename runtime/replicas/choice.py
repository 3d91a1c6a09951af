"""Which replica computes a request: the one with its prefix, unless the queue there costs more.

Everything is counted in prompt tokens that a replica has yet to compute, the unit of both sides
of the decision: a match saves tokens of this request, a queue is tokens of others before it. So
the speed of a replica need not be known. A prefix that is used more than one replica can serve
spreads by itself: the queue there grows until another replica computes the prefix once, and has
it from then on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Candidate", "ChoiceCosts", "Intake", "choose"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is known of a replica that could compute a request.

    replica         its name
    matched_tokens  of the request's prompt that the replica need not compute: cached there, or
                    being computed there for an earlier request; more than the prompt counts as
                    the prompt
    waiting_tokens  prompt tokens that requests sent there before still have to compute
    running         requests that run there, decoding ones included
    intake_tokens   prompt tokens computed there lately (`Intake`), which displace others from the
                    cache; 0 for all where they are not counted
    """

    replica: str
    matched_tokens: int
    waiting_tokens: int
    running: int
    intake_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class ChoiceCosts:
    """Costs besides waiting and computing, in prompt tokens.

    leave_share   of the tokens that the longest match saves over another replica, times the share
                  of the prompt that these are: so many more must wait at it before it is left. A
                  prefix that is computed elsewhere displaces others from the cache there, which
                  this stands for; what all prompts begin with hardly counts
    leave_least   but at least so many, where it saves any: no conversation is moved for less than
                  what a step computes. 0 where prompts are long
    leave_tokens  and at most so many, so that no request waits long for its prefix: some 3 s where
                  a server computes 20,000 tokens a second. Fewer bring first tokens earlier, more
                  bring hits (tests/bench/LOG.md, "Where a request goes among replicas")
    row_tokens    of a running request, which slows the steps of all others. V4-Flash on two H200s
                  takes 0.18 ms longer a token for one more row, so 54 ms for an answer of 300
                  tokens, and 46 ms for 1,024 tokens of a prompt (README.md, "Several GPUs")
    """

    leave_share: float = 16.0
    leave_least: int = 0
    leave_tokens: int = 65_536
    row_tokens: int = 1024


COSTS = ChoiceCosts()


def choose(
    candidates: Sequence[Candidate], prompt_tokens: int, *, costs: ChoiceCosts = COSTS
) -> Candidate:
    """Return the replica that should compute a prompt.

    The longest match wins unless another replica would begin to answer earlier, by more than
    `costs` allow for. Equal ones are decided by load, then by what they computed lately, so that
    new prompts share all caches evenly, then by the order of `candidates`.

    prompt_tokens  of the whole prompt, 0 or more
    Raises ValueError without candidates.
    """
    if not candidates:
        raise ValueError("no replica to choose from")

    def load(candidate: Candidate) -> int:
        return candidate.waiting_tokens + costs.row_tokens * candidate.running

    def saved(candidate: Candidate) -> int:
        return min(candidate.matched_tokens, prompt_tokens)

    def cost(candidate: Candidate) -> int:
        return load(candidate) + prompt_tokens - saved(candidate)

    def rank(candidate: Candidate) -> tuple[int, float]:
        return load(candidate), candidate.intake_tokens

    home = min(candidates, key=lambda candidate: (-saved(candidate), *rank(candidate)))
    best = min(candidates, key=lambda candidate: (cost(candidate), *rank(candidate)))
    gain = saved(home) - saved(best)
    allowed = costs.leave_share * gain * gain / max(1, prompt_tokens)
    allowed = min(max(allowed, costs.leave_least if gain else 0), costs.leave_tokens)
    return best if cost(home) - cost(best) > allowed else home


class Intake:
    """Counts the prompt tokens that each replica computed lately.

    memory_tokens  of all replicas together, after which a token counts for 1/e: about as many as
                   all caches hold
    """

    def __init__(self, memory_tokens: float = 4e6) -> None:
        self._memory_tokens = memory_tokens
        self._tokens: dict[str, float] = {}

    def note(self, replica: str, tokens: int) -> None:
        """Count tokens that a replica is to compute."""
        kept = math.exp(-tokens / self._memory_tokens)
        self._tokens = {name: count * kept for name, count in self._tokens.items()}
        self._tokens[replica] = self._tokens.get(replica, 0.0) + tokens

    def forget(self, replica: str) -> None:
        """Drop a replica that is gone, or whose cache is empty again."""
        self._tokens.pop(replica, None)

    def of(self, replica: str) -> float:
        """Return the tokens of a replica; 0 if it has computed none."""
        return self._tokens.get(replica, 0.0)
