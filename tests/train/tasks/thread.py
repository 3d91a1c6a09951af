"""A thread of talk: what a family of tasks is to a conversation that weaves several together."""

import math
from bisect import bisect_left, bisect_right
from random import Random
from typing import Protocol

from tests.train.dialogue import Check, Exchange, Turn

# Measured on generated text: characters a token, and the tokens around a turn.
CHARACTERS_A_TOKEN = 4.2
TOKENS_A_TURN = 2
NEAREST_TOKENS = 20
_TOGETHER = 10


class Thread(Protocol):
    """Talks about one matter, an exchange at a time."""

    def step(self, at: int) -> Exchange:
        """Return the next exchange; about `at` tokens were said before it, by all threads."""
        ...


def tokens_of(text: str) -> int:
    """Return about how many tokens `text` has."""
    return int(len(text) / CHARACTERS_A_TOKEN)


def size_of(exchange: Exchange) -> int:
    """Return about how many tokens `exchange` has."""
    return sum(int(len(turn.content) / CHARACTERS_A_TOKEN) + TOKENS_A_TURN for turn in exchange)


def ask(question: str, answer: str, *, think: str, check: Check | None = None) -> Exchange:
    """Return a question and its answer, which begins with thinking `think` where one thinks."""
    return Turn("user", question), Turn("assistant", answer, reasoning=think, check=check)


def place_to_ask(rng: Random, stated_at: list[int], at: int) -> int:
    """Return the index of the statement whose distance from `at` is nearest to a random one.

    stated_at  about how many tokens were said before each, in ascending order
    The random distance is log-uniform from `NEAREST_TOKENS` to the first statement's.
    """
    farthest = max(at - stated_at[0], NEAREST_TOKENS + 1)
    distance = math.exp(rng.uniform(math.log(NEAREST_TOKENS), math.log(farthest)))
    wanted = at - distance
    k = min(bisect_left(stated_at, wanted), len(stated_at) - 1)
    if k and wanted - stated_at[k - 1] < stated_at[k] - wanted:
        k -= 1
    # What was said together is as near as the nearest.
    low = bisect_left(stated_at, stated_at[k] - _TOGETHER)
    return rng.randrange(low, bisect_right(stated_at, stated_at[k] + _TOGETHER))
