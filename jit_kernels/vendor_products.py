"""What this process multiplies by, so that vendors' kernels for it are there before they are met.

DeepGEMM compiles a kernel when it first meets sizes of its kind, which takes seconds. What a kernel
depends on is known as soon as a weight is allocated, but for the number of rows: whoever allocates
one notes its sizes, and the server asks for the kernels of all numbers of rows that steps may have.
"""

import weakref
from collections.abc import Callable, Sequence
from threading import Event
from typing import NamedTuple

import torch

from jit_kernels.kernels_ahead import compile_ahead
from jit_kernels.vendor_calls import VendorCalls, make, vendor_calls

__all__ = ["calls_of", "compile_products", "note", "run_products"]

# Results of a product that is made for the sake of its kernel: 2^28 numbers are 1 GiB.
_MOST_NUMBERS = 1 << 28


class _Noted(NamedTuple):
    op: str
    sizes: tuple[int, ...]
    above: int
    weight: "weakref.ref[torch.Tensor]"


_NOTED: list[_Noted] = []


def note(op: str, sizes: Sequence[int], weight: torch.Tensor, *, above: int = 0) -> None:
    """Remember, for as long as `weight` lives, that an op multiplies by it.

    op     its name in the registry
    sizes  as the op's `rehearse` takes them
    above  the op is called with more rows than that
    """
    _NOTED[:] = [one for one in _NOTED if one.weight() is not None]
    _NOTED.append(_Noted(op, tuple(sizes), above, weakref.ref(weight)))


def calls_of(rows: Sequence[int], device: torch.device) -> list[VendorCalls]:
    """Return what products on a device call vendors' libraries for, with all numbers of rows.

    A product that would be larger than any that a step keeps is left out.
    """
    kinds: dict[tuple[str, tuple[int, ...], int], None] = {}
    for op, sizes, above, weight in _NOTED:
        alive = weight()
        if alive is not None and alive.device == device:
            kinds[op, sizes, above] = None
    return [
        call
        for op, sizes, above in kinds
        for call in vendor_calls(
            op, sizes, _fitting(op, sizes, [count for count in rows if count > above])
        )
    ]


def compile_products(
    rows: Sequence[int], device: torch.device, *, stop: Event, tell: Callable[[str], None]
) -> list[str]:
    """Compile the kernels of all products, side by side; see `kernels_ahead.compile_ahead`."""
    return compile_ahead(calls_of(rows, device), device, stop=stop, tell=tell)


def run_products(rows: Sequence[int], device: torch.device) -> None:
    """Make each product once, so that its kernel is loaded."""
    for calls in calls_of(rows, device):
        make(calls, device)


def _fitting(op: str, sizes: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Return the numbers of rows whose results are not too large."""
    if op == "grouped_moe":
        return [*rows]
    *groups, columns, _ = sizes
    width = columns * (groups[0] if groups else 1)
    return [count for count in rows if count * width <= _MOST_NUMBERS]
