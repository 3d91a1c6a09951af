"""The cases of the kernel benchmark: they run, and their bytes are those of their tensors."""

import math

from tests.bench.kernels.case import Limit
from tests.bench.kernels.cases import cases

# Of sizes of their own, whatever the tokens.
FIXED = ("likeliest", "mask_logits", "sample_unread", "select_topk")


def test_every_case_of_a_batch_runs() -> None:
    found = [case for case in cases((3,)) if case.op not in FIXED]

    for case in found:
        call = case.prepare()
        call()
        call()

    assert len({case.op for case in found}) == 12
    assert len({(case.op, case.shape) for case in found}) == len(found)


def test_bytes_grow_with_the_tokens() -> None:
    few, many = ({(c.op, c.shape.split(" ", 1)[1]): c for c in cases((n,))} for n in (64, 128))

    for key, case in few.items():
        if case.op not in FIXED:
            assert case.moved_bytes < many[key].moved_bytes <= 2 * case.moved_bytes, key


def test_a_limit_counts_in_copies_in_bandwidth_and_in_time() -> None:
    assert Limit().slowest_us(copy_us=1.0, floor_us=1.0) == math.inf
    assert Limit(copies=1.5).slowest_us(copy_us=2.0, floor_us=0.1) == 3.0
    assert Limit(share=0.8).slowest_us(copy_us=9.0, floor_us=8.0) == 10.0
    assert Limit(share=0.8).slowest_us(copy_us=16.0, floor_us=8.0) == 10.0
    assert Limit(time_us=15.0).slowest_us(copy_us=99.0, floor_us=99.0) == 15.0
    assert Limit(copies=1.5, share=0.8).slowest_us(copy_us=9.0, floor_us=8.0) == 10.0
