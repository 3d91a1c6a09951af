"""Blocks of GGUF files, against the library that writes them."""

import pytest
import torch

from layers.weights.gguf_blocks import expand, row_bytes
from tests.testing.compare import assert_same_bits

quants = pytest.importorskip("gguf.quants")
GGMLQuantizationType = pytest.importorskip("gguf").GGMLQuantizationType


@pytest.mark.parametrize("kind", ["F32", "Q4_1", "Q8_0"])
def test_numbers_are_those_that_the_library_expands(kind: str) -> None:
    numbers, number = torch.randn(5, 96).numpy(), GGMLQuantizationType[kind]
    stored = torch.from_numpy(quants.quantize(numbers, number)).view(torch.uint8).reshape(5, -1)

    got = expand(stored, kind)

    assert stored.shape[1] == row_bytes(kind, 96)
    assert_same_bits(got, torch.from_numpy(quants.dequantize(stored.numpy(), number)).view(5, 96))


def test_rows_are_whole_blocks() -> None:
    with pytest.raises(ValueError, match="whole blocks of 32"):
        row_bytes("Q8_0", 48)
