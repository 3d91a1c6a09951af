"""Calls of a vendor's library, described so that a process without a network can make them.

What DeepGEMM compiles for a call depends on its sizes and on nothing that tensors hold. An op that
leaves calls to it has a function `rehearse` beside them, which makes one on memory that holds
anything; it knows, too, which calls the library never sees.
"""

import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from jit_kernels.registry import chosen

__all__ = ["VendorCalls", "from_json", "make", "to_json", "vendor_calls"]

# Backends that leave calls to DeepGEMM, all or some; `deep_gemm_backend` has `rehearse`.
_BACKENDS = ("mixed", "deep_gemm")


@dataclass(frozen=True, slots=True)
class VendorCalls:
    """Calls that differ in their number of rows alone.

    folder   of the op, in `jit_kernels`
    backend  that the op's calls go to
    sizes    of what rows are multiplied by, or else meet; the op's `rehearse` says which
    rows     ascending
    """

    folder: str
    backend: str
    sizes: tuple[int, ...]
    rows: tuple[int, ...]


def vendor_calls(op: str, sizes: Sequence[int], rows: Iterable[int]) -> list[VendorCalls]:
    """Return the calls of an op on a CUDA device; none where no vendor's library runs it there.

    op  its name in the registry: that of its folder and what kind of call it is
    """
    backend = chosen("cuda").get(op)
    if backend not in _BACKENDS:
        return []
    folder = op.removesuffix("_invariant").removesuffix("_grouped")
    return [VendorCalls(folder, backend, tuple(sizes), tuple(sorted({*rows} - {0})))]


def make(calls: VendorCalls, device: torch.device) -> None:
    """Make the calls; what they compute means nothing."""
    module = importlib.import_module(f"jit_kernels.{calls.folder}.deep_gemm_backend")
    rehearse: Callable[..., Any] = module.rehearse
    # The most first: what fewer take fits into the memory that these leave.
    for rows in calls.rows[::-1]:
        rehearse(rows, calls.sizes, mixed=calls.backend == "mixed", device=device)


def to_json(calls: Iterable[VendorCalls]) -> str:
    """Return calls as text, for another process."""
    return json.dumps([asdict(one) for one in calls])


def from_json(text: str) -> list[VendorCalls]:
    """Return what `to_json` was given."""
    return [
        VendorCalls(one["folder"], one["backend"], tuple(one["sizes"]), tuple(one["rows"]))
        for one in json.loads(text)
    ]
