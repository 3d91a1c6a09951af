"""Scores of chunks from the device; the vendor's only there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from jit_kernels.chunk_logits import reference, triton_backend
from jit_kernels.vendor_library import why_no_deep_gemm
from tests.jit_kernels.kernels.sizes import with_large
from tests.jit_kernels.kernels.test_paged_logits import bounds
from tests.testing.compare import assert_close, assert_same_bits
from tests.testing.indexer_keys import key_layout, some_key_pages, some_queries

Op = Callable[..., Tensor]
Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
BACKENDS = ["triton", *([] if why_no_deep_gemm() else ["deep_gemm"])]
# Tokens and first block seen of each row, heads, channels.
CASES = with_large(
    [([(5, 0), (2, 130)], 32, 32), ([(3, 70)], 64, 128)],
    [([(700, 0), (1, 5000), (299, 1234)], 64, 128), ([(2000, 16_000)], 64, 128)],
)


@pytest.fixture(autouse=True)
def small_tiles(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the interpreter's few keys more than one tile."""
    if device.type == "cpu":
        monkeypatch.setattr(triton_backend, "KEYS", 64)


def op_of(name: str) -> Op:
    """Return a backend's function."""
    if name == "triton":
        return triton_backend.chunk_logits
    from jit_kernels.chunk_logits import deep_gemm_backend

    return deep_gemm_backend.chunk_logits


def inputs(chunks: list[tuple[int, int]], heads: int, width: int) -> tuple[Inputs, int]:
    """Return queries, weights, keys, bounds of the tokens of some rows, and the most keys."""
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("chunks", "heads", "width"), CASES, ids=str)
def test_scores_equal_the_reference(
    device: torch.device, backend: str, chunks: list[tuple[int, int]], heads: int, width: int
) -> None:
    tensors, columns = inputs(chunks, heads, width)

    got = op_of(backend)(*tensors, columns)

    want = reference.chunk_logits(*tensors, columns)
    assert got.shape == want.shape
    seen = torch.arange(columns) < (tensors[5] - tensors[4]).unsqueeze(1)
    assert not bool(want[seen].isnan().any())
    assert_close(got[seen], want[seen], bounds(device, want[seen]), what=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_token_has_the_same_bits_in_any_company(device: torch.device, backend: str) -> None:
    chunks = [(5, 60)] if device.type == "cpu" else [(500, 3000), (7, 0)]
    tensors, columns = inputs(chunks, 64, 32 if device.type == "cpu" else 128)
    whole = op_of(backend)(*tensors, columns)

    # In the interpreter a sum depends on the column of its tile, as numpy multiplies: two tokens a
    # tile, so that one stays where it was.
    second = 2 if device.type == "cpu" else 1
    for first, past in ((0, 1), (second, 4)):
        q, weights, codes, scales, start, end = tensors
        mine = slice(first, past)
        part = op_of(backend)(
            q[mine], weights[mine], codes, scales, start[mine], end[mine], columns
        )  # fmt: skip
        for token in range(first, past):
            count = int(end[token] - start[token])
            got, want = part[token - first, :count], whole[token, :count]
            assert_same_bits(got, want, what=f"{backend} token {token}")


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
