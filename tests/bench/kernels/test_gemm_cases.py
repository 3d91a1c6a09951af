"""The cases of the matrix benchmark: all different, with bytes and operations that add up."""

from tests.bench.kernels.gemm_cases import EXPERTS, INNER, WIDTH, matrix_cases, routing


def test_no_case_is_there_twice_and_each_moves_bytes() -> None:
    found = list(matrix_cases())

    assert len({(case.op, case.backend, case.shape) for case in found}) == len(found)
    assert all(case.bytes > 0 for case in found)


def test_routed_experts_count_once_however_many_rows_want_them() -> None:
    by_rows = {case.shape: case for case in matrix_cases() if case.backend == "triton fp8"}

    one, many = by_rows["1 rows"], by_rows["1024 rows"]
    assert one.bytes == 6 * 3 * INNER * WIDTH + 4 * WIDTH
    assert many.bytes == EXPERTS * 3 * INNER * WIDTH + 1024 * 4 * WIDTH
    assert many.flops == 1024 * one.flops


def test_routing_is_even_and_the_same_each_time() -> None:
    chosen, weights = routing(64)

    assert chosen.shape == weights.shape == (64, 6)
    assert all(len(set(row)) == 6 for row in chosen.tolist())
    assert chosen.equal(routing(64)[0])
    assert 190 < len(chosen.unique()) < 215
