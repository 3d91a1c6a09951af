"""Tokens in the scheduler's queue, as the API process knows them without asking.

The scheduler reads its messages between two steps, which a chunk of a prompt can make half a
second long. It reports its queue before each step; requests that it has not read by then count in
whole, as they do there. So a prompt that it would refuse is refused without it, and at once. What
the scheduler itself decides stays the truth: requests may have ended since its report.
"""

from collections import deque

from runtime.messages import Queued

__all__ = ["QueuedTokens"]


class QueuedTokens:
    """Counts tokens of prompts that wait, up to a bound.

    most  tokens that may wait; None: no limit, and nothing is counted
    """

    def __init__(self, most: int | None) -> None:
        self.most = most
        self._reported = self._unread_tokens = 0
        self._received = 0
        self._unread = deque[int]()

    @property
    def count(self) -> int:
        """Tokens that wait to be computed."""
        return self._reported + self._unread_tokens

    def exceeds(self, tokens: int) -> bool:
        """Return whether so many tokens more are too many to wait."""
        return self.most is not None and self.count + tokens > self.most

    def sent(self, tokens: int) -> None:
        """Count a request with a prompt of so many tokens that is sent to the scheduler."""
        if self.most is not None:
            self._unread.append(tokens)
            self._unread_tokens += tokens

    def report(self, message: Queued) -> None:
        """Take in the scheduler's report: it covers the requests that were received by then."""
        self._reported = message.tokens
        for _ in range(min(message.received - self._received, len(self._unread))):
            self._unread_tokens -= self._unread.popleft()
        self._received = message.received
