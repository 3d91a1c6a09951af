"""What waits by the scheduler's report, and requests that it had not read by then."""

from runtime.messages import Queued
from runtime.tokenizer.queued_tokens import QueuedTokens


def test_requests_count_in_whole_until_a_report_covers_them() -> None:
    queued = QueuedTokens(100)
    for tokens in (30, 40, 20):
        queued.sent(tokens)
    assert queued.count == 90
    assert queued.exceeds(11)
    assert not queued.exceeds(10)

    queued.report(Queued(received=1, tokens=1))
    assert queued.count == 61
    # Two were read, and nearly all of both is in the cache.
    queued.report(Queued(received=2, tokens=5))
    assert queued.count == 25
    queued.report(Queued(received=3, tokens=7))
    assert queued.count == 7
    queued.sent(1)
    assert queued.count == 8


def test_without_a_bound_nothing_is_too_much() -> None:
    queued = QueuedTokens(None)
    queued.sent(1 << 30)

    assert not queued.exceeds(1 << 30)
    assert queued.count == 0
