"""Pages copied in Triton; scores of chunks from the vendor's library, which a device has."""

import pytest
import torch
from torch import Tensor

from jit_kernels.chunk_logits import reference, triton_backend
from jit_kernels.vendor_library import why_no_deep_gemm
from tests.jit_kernels.kernels.test_paged_logits import bounds
from tests.testing.compare import assert_close, assert_same_bits
from tests.testing.indexer_keys import key_layout, some_key_pages, some_queries

REASON = why_no_deep_gemm()
BY_DEEP_GEMM = pytest.mark.skipif(REASON is not None, reason=str(REASON))
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
# Tokens and first block seen of each row.
CASES = [[(3, 70)], [(700, 0), (1, 5000), (299, 1234)], [(2000, 16_000)]]


def inputs(chunks: list[tuple[int, int]]) -> tuple[Inputs, int]:
    """Return queries, weights, keys, bounds of the tokens of some rows, and the most keys."""
    heads, width = 64, 128
    counts = [first + tokens // 4 + 1 for tokens, first in chunks]
    pages, table = some_key_pages(counts, width)
    named: list[int] = []
    start: list[int] = []
    end: list[int] = []
    for row, (tokens, first) in enumerate(chunks):
        base = 64 * len(named)
        start += [base] * tokens
        end += [base + first + token // 4 for token in range(tokens)]
        named += table[row, : -(-counts[row] // 64)].tolist()
    listed = torch.tensor(named, dtype=torch.int32)
    keys = reference.gather_key_pages(pages, listed, key_layout(width))
    span = torch.tensor(start, dtype=torch.int32), torch.tensor(end, dtype=torch.int32)
    queries = some_queries(len(start), heads, width)
    return (*queries, *keys, *span), max(counts)


@pytest.mark.gpu
@BY_DEEP_GEMM
@pytest.mark.parametrize("chunks", CASES, ids=str)
def test_scores_equal_the_reference(device: torch.device, chunks: list[tuple[int, int]]) -> None:
    from jit_kernels.chunk_logits import deep_gemm_backend

    tensors, columns = inputs(chunks)

    got = deep_gemm_backend.chunk_logits(*tensors, columns)

    want = reference.chunk_logits(*tensors, columns)
    assert got.shape == want.shape
    seen = torch.arange(columns) < (tensors[5] - tensors[4]).unsqueeze(1)
    assert not bool(want[seen].isnan().any())
    assert_close(got[seen], want[seen], bounds(device, want[seen]))


@pytest.mark.gpu
@BY_DEEP_GEMM
def test_a_token_has_the_same_bits_in_any_company() -> None:
    from jit_kernels.chunk_logits import deep_gemm_backend

    tensors, columns = inputs([(500, 3000), (7, 0)])
    whole = deep_gemm_backend.chunk_logits(*tensors, columns)

    for first, past in ((0, 1), (1, 4)):
        q, weights, codes, scales, start, end = tensors
        mine = slice(first, past)
        part = deep_gemm_backend.chunk_logits(
            q[mine], weights[mine], codes, scales, start[mine], end[mine], columns
        )
        for token in range(first, past):
            count = int(end[token] - start[token])
            got, want = part[token - first, :count], whole[token, :count]
            assert_same_bits(got, want, what=f"token {token}")


@pytest.mark.parametrize("width", [32, 128])
def test_pages_are_copied_as_by_the_reference(width: int) -> None:
    pages, table = some_key_pages([130, 60], width)
    named = torch.cat((table[0, :3], table[1, :1], table[0, :1]))

    got = triton_backend.gather_key_pages(pages, named, key_layout(width))

    want = reference.gather_key_pages(pages, named, key_layout(width))
    assert_same_bits(got[0].view(torch.uint8), want[0].view(torch.uint8))
    assert_same_bits(got[1].view(torch.int32), want[1].view(torch.int32))
    empty = triton_backend.gather_key_pages(pages, named[:0], key_layout(width))
    assert [tensor.shape[0] for tensor in empty] == [0, 0]
