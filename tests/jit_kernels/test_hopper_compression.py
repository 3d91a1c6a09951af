"""Kernels of indexing compiled for Hopper in V4's sizes: they fit, none spills."""

import importlib.util
import os

import pytest
import torch

from jit_kernels.paged_rows import PageLayout
from tests.jit_kernels.test_hopper_code import assert_fits, empty

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter runs"),
]

KEYS = PageLayout(page_rows=64, data_bytes=128, scale_bytes=4, page_bytes=8448)


def numbers(*shape: int) -> torch.Tensor:
    """Return float32 without memory."""
    return empty(*shape, dtype=torch.float32)


def places(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return integers without memory."""
    return empty(*shape, dtype=dtype)


@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_scores(tokens: int) -> None:
    from jit_kernels.chunk_logits import triton_backend as chunk
    from tests.testing.hopper_code import launches

    codes = empty(tokens, 64, 128, dtype=torch.float8_e4m3fn)
    pages, bound = (
        places(100, KEYS.page_bytes, dtype=torch.uint8),
        places(tokens, dtype=torch.int32),
    )
    with launches() as found:
        rows = (codes, numbers(tokens, 64))
        keys = empty(6400, 128, dtype=torch.float8_e4m3fn), numbers(6400)
        chunk.chunk_logits(*rows, *keys, bound, bound, 16_384)
        chunk.gather_key_pages(pages, places(100, dtype=torch.int32), KEYS)

    assert_fits([*found])
