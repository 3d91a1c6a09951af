"""Prefixes in the making are found by whole pages, for as long as somebody computes them."""

import numpy as np

from runtime.messages import Generate, Sampling, pack_ids
from runtime.scheduler.pending_prefixes import PendingPrefixes, prefix_hashes
from runtime.scheduler.request import Request


def request_of(request_id: int, tokens: list[int], namespace: str = "") -> Request:
    request = Request(Generate(request_id, pack_ids(tokens), Sampling(1, seed=0)), (), 0.0)
    prompt = np.array(tokens, np.int32)
    request.prefixes = prefix_hashes(prompt, page_size=4, namespace=namespace)
    return request


def test_whole_pages_in_common_are_matched() -> None:
    pending = PendingPrefixes()
    pending.add(request_of(1, [*range(11)]))

    assert pending.match(request_of(2, [*range(8), 99, 99, 99, 99]).prefixes) == 2
    assert pending.match(request_of(3, [*range(4), 99]).prefixes) == 1
    assert pending.match(request_of(4, [99, *range(1, 8)]).prefixes) == 0
    assert pending.match(request_of(5, [*range(8)], "salt").prefixes) == 0
    assert pending.match(()) == 0


def test_a_prefix_is_there_until_its_last_request_goes() -> None:
    pending = PendingPrefixes()
    first, second = request_of(1, [*range(8)]), request_of(2, [*range(9)])
    for request in (first, second, second):
        pending.add(request)

    pending.remove(second)
    assert pending.match(first.prefixes) == 2
    pending.remove(second)
    assert pending.match(first.prefixes) == 2
    pending.remove(first)
    assert pending.match(first.prefixes) == 0
