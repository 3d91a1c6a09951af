"""The cases of compression and indexing: they run, and none stands for two shapes."""

from tests.bench.kernels.compression_cases import cases


def test_every_case_runs() -> None:
    found = list(cases(shrink=512))

    for case in found:
        call = case.prepare()
        call()
        call()

    assert {case.op for case in found} == {
        "chunk_logits",
        "fold_chunks",
        "fold_tokens",
        "indexer_queries",
        "out_rope_quant",
        "paged_logits",
        "pool_chunks",
        "pool_tokens",
    }


def test_a_shape_is_measured_once() -> None:
    found = [(case.op, case.shape) for case in cases()]

    assert len(set(found)) == len(found)
    assert all(case.moved_bytes > 0 for case in cases())
