"""The cases of the kernel benchmark: they run, and their bytes are those of their tensors."""

from tests.bench.kernels.case import FEW, LIMITS, MANY, Limit
from tests.bench.kernels.cases import ROUTES, ROUTING, cases

# Of sizes of their own, whatever the tokens.
FIXED = ("sample_unread", "select_topk")


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
    assert Limit().is_kept(1e9, copy_us=1.0, floor_us=1.0)
    assert Limit(copies=1.5).is_kept(3.0, copy_us=2.0, floor_us=0.1)
    assert not Limit(copies=1.5).is_kept(3.1, copy_us=2.0, floor_us=3.1)
    assert Limit(share=0.8).is_kept(10.0, copy_us=1.0, floor_us=8.0)
    assert not Limit(share=0.8).is_kept(10.0, copy_us=10.0, floor_us=7.9)
    assert not Limit(time_us=15.0).is_kept(15.1, copy_us=99.0, floor_us=99.0)


def test_all_but_routing_of_many_tokens_is_held_to_the_same_limits() -> None:
    held = {(case.op, case.shape): case.limit for case in cases() if case.op not in FIXED}

    assert {key[0] for key, limit in held.items() if limit == ROUTING} == set(ROUTES)
    for (op, shape), limit in held.items():
        count = int(shape.split()[0].removeprefix("T="))
        if limit != ROUTING and op != "expert_blocks":
            assert limit == LIMITS[count], (op, shape)
    assert held["route_topk", f"T={FEW} E=256"] == LIMITS[FEW]
    assert held["route_hashed", f"T={MANY} E=256"] == ROUTING
