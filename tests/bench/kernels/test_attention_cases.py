"""The cases of the attention benchmark: they run, and none stands for two shapes."""

from tests.bench.kernels.attention_cases import ANY, attention_cases


def test_every_case_runs() -> None:
    found = list(attention_cases([ANY], shrink=1024))

    for case in found:
        if "8192" not in case.shape and "8320" not in case.shape:
            case.prepare()()

    ops = {case.op for case in found}
    assert ops >= {"paged_attention", "sparse_prefill"}
    assert ops >= {"fill_workspace", "decode_indices"}


def test_a_shape_is_measured_once() -> None:
    found = [(case.op, case.backend, case.shape) for case in attention_cases(["a", "b"])]

    assert len(set(found)) == len(found)
