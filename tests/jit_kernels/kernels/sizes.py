"""Sizes that only a device gets through in time."""

from typing import TypeVar

import torch

T = TypeVar("T")


def with_large(small: list[T], large: list[T]) -> list[T]:
    """Return `small`, and `large` too where there is a CUDA device."""
    return [*small, *large] if torch.cuda.is_available() else small
