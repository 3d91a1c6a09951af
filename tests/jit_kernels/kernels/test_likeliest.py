"""The likeliest token, found by many programs: the very token of the reference."""

from types import ModuleType

import pytest
import torch

from jit_kernels.likeliest import reference, triton_backend
from tests.jit_kernels.kernels.sizes import with_large
from tests.testing.compare import assert_same_bits

# Rows, vocabulary.
CASES = with_large(
    [(0, 5), (1, 1), (3, 97), (2, 4096), (2, 4097)],
    [(1, 129_280), (64, 129_280), (7, 2**18), (300, 5000)],
)


def told(backend: ModuleType, logits: torch.Tensor) -> torch.Tensor:
    """Return what a backend writes over what is no id."""
    out = torch.full((logits.shape[0],), -(2**40))
    backend.likeliest(logits, out)
    return out


@pytest.mark.parametrize("values", [2, 1 << 20])
@pytest.mark.parametrize(("rows", "vocab"), CASES)
def test_tokens_are_those_of_the_reference(rows: int, vocab: int, values: int) -> None:
    """Of few values, nearly all are ties."""
    logits = torch.randint(values, (rows, vocab + 3)).to(torch.float32)[:, :vocab] - values / 2

    assert_same_bits(told(triton_backend, logits), told(reference, logits))


@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
def test_strange_numbers_are_found_wherever_they_are(strange: float) -> None:
    logits = torch.randn(6, 5000)
    for row, column in enumerate((0, 1023, 4095, 4096, 4999)):
        logits[row, column] = strange

    assert told(triton_backend, logits).tolist() == [-1] * 5 + [int(logits[5].argmax())]
