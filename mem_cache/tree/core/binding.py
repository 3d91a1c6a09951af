"""The structs and functions of the C core as ctypes sees them: `core.h`, field by field."""

import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path

import numpy as np

from jit_kernels.host_library import load
from mem_cache.errors import IntegrityError

POOLS = ("full", "swa", "states", "node_ids", "point_ids")
FAULT_NO_UNIT, FAULT_FREE_UNIT, FAULT_IN_TREE = -1, -2, -4
FLAG_SUPERSEDED, FLAG_FORKED, FLAG_ASIDE = 1, 2, 16
# As in `core.h`.
TURN_CLASSES, LENGTH_CLASSES, SAVE_CLASSES = 8, 5, 8

# The int32 arrays by node and by point, in the order of the struct.
PAGE_WORDS = (
    *("length", "number", "parent", "root", "child", "children", "heads", "point", "locks"),
    *("guards", "split_at", "split_low", "split_high"),
)
POINT_WORDS = ("position", "state", "holder", "below", "pins", "chain")


class CPool(Structure):
    """`Pool`."""

    _fields_ = (
        ("references", c_void_p),
        ("stack", c_void_p),
        ("capacity", c_int64),
        ("free", c_int64),
        ("culprit", c_int64),
    )


class CLinks(Structure):
    """`Links`."""

    _fields_ = (("newer", c_void_p), ("older", c_void_p))


class CTree(Structure):
    """`Tree`."""

    _fields_ = (
        *(
            (name, c_int32)
            for name in (
                *("page_size", "window_pages", "page_kinds", "point_kinds", "end_kind"),
                *("replay", "has_state"),
            )
        ),
        ("tick", c_int64),
        *((name, POINTER(CPool)) for name in POOLS),
        *(
            (name, c_void_p)
            for name in (
                *("roots", "node_of", "unit", "tokens"),
                *PAGE_WORDS,
                *("stamp", "kind", "turns", "flags", "trail"),
            )
        ),
        ("page_links", CLinks),
        ("root_links", CLinks),
        *((name, c_void_p) for name in ("page_lists", "page_favour", "returns", "traces")),
        ("trace_mask", c_int64),
        ("evicted", c_void_p),
        ("evicted_mask", c_int64),
        *(
            (name, c_void_p)
            for name in (
                "point_of",
                *POINT_WORDS,
                *("windows", "point_stamp", "exact", "point_kind", "point_saves", "buckets"),
            )
        ),
        ("bucket_mask", c_int64),
        ("point_links", CLinks),
        ("point_lists", c_void_p),
        ("point_favour", c_void_p),
        ("uses", c_void_p),
        ("kind_after_use", c_void_p),
        *(
            (name, c_int64)
            for name in (
                "pages",
                "guarded",
                "points",
                "pins_held",
                "evicted_pages",
                "evicted_points",
                "returned_pages",
            )
        ),
        ("removed", c_void_p),
        ("removed_count", c_int64),
        ("log_removed", c_int32),
        ("scratch", c_void_p),
    )


class CMatch(Structure):
    """`Match`."""

    _fields_ = tuple(
        (name, c_int32)
        for name in (
            *("full_tokens", "pages", "holder", "point", "resume_tokens", "turns"),
            "point_evicted",
        )
    )


class CInsertion(Structure):
    """`Insertion`."""

    _fields_ = (
        ("tokens", c_void_p),
        ("pages", c_void_p),
        *(
            (name, c_int32)
            for name in (
                "length",
                "from_node",
                "locked",
                "turns",
                "output_from",
                "ended",
                "node",
                "new_tokens",
                "first_new",
                "copied",
            )
        ),
        ("since", c_int64),
    )


LIST = np.dtype([("oldest", "i4"), ("newest", "i4"), ("length", "i8")])
ROOT = np.dtype(
    [
        *((name, "i4") for name in ("child", "children", "locks", "heads")),
        *((name, "i8") for name in ("pages", "tokens")),
        ("leaves", LIST),
    ]
)
RETURNS = np.dtype([(name, "i8") for name in ("ended", "returned", "waited")])
USES = np.dtype([(name, "i8") for name in ("points", "lived", "used")])
TRACE = np.dtype([("tick", "i8"), ("trail", "u4"), ("turns", "u1"), ("kind", "u1")], align=True)

addressof, from_buffer = ctypes.addressof, ctypes.c_char.from_buffer

_P, _I, _L, _U = c_void_p, c_int32, c_int64, c_uint64
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "pool_alloc": (_I, (_P, _I, _P)),
    "pool_incref": (_I, (_P, _P, _I)),
    "pool_decref": (_I, (_P, _P, _I)),
    "point_add": (_I, (_P, _I, _I, _P, _I, _I, _I, _I)),
    "point_give": (_I, (_P, _I, _I, _P, _I, _I, _I, _I)),
    "point_find": (_I, (_P, _I, _I)),
    "points_evict": (_I, (_P, _L, _L)),
    "siblings_nearest": (_I, (_P, _I, _P)),
    "tree_match": (None, (_P, _I, _P, _I, _I, _P, _P)),
    "tree_use": (None, (_P, _I, _I, _I)),
    "tree_insert": (_I, (_P, _P)),
    "tree_hold": (_I, (_P, _I, _I, _I)),
    "tree_unpin": (_I, (_P, _I)),
    "tree_cool": (None, (_P, _I, _I)),
    "tree_unlock": (_I, (_P, _I)),
    "tree_evict": (_I, (_P, _L)),
    "tree_evict_root": (_I, (_P, _I, _L)),
    "tree_span": (_I, (_P, _I, _P)),
    "tree_set_aside": (_I, (_P, _I)),
    "tree_drop": (None, (_P, _I)),
    "trail_add": (_U, (_U, _P, _I)),
}


@cache
def library() -> ctypes.CDLL:
    """Return the compiled core with its signatures set.

    Raises BackendUnavailable if it cannot be compiled, IntegrityError if the structs differ.
    """
    core = load("cache_core", Path(__file__).parent)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(core, name)
        function.restype, function.argtypes = result, arguments
    sizes = (c_int64 * 8)()
    core.struct_sizes(sizes)
    mine = [ctypes.sizeof(struct) for struct in (CPool, CTree, CMatch, CInsertion)]
    mine += [array.itemsize for array in (ROOT, RETURNS, TRACE, USES)]
    if list(sizes) != mine:
        raise IntegrityError(f"core.h and its mirror differ: {list(sizes)} and {mine} bytes")
    return core


def insertion_fault(fault: int, name: str, pool: CPool) -> IntegrityError:
    """Return the error for what `tree_insert` returned; the pool is that of full pages."""
    page = pool.culprit
    if fault == FAULT_NO_UNIT:
        return IntegrityError(f"pool {name}: no page {page} of {pool.capacity}")
    if fault == FAULT_FREE_UNIT:
        return IntegrityError(f"pool {name}: reference to free unit {page}")
    if fault == FAULT_IN_TREE:
        return IntegrityError(f"page {page} is in the tree already, for other tokens")
    return IntegrityError("insert below a node that left the tree")


def address(array: np.ndarray) -> int:
    """Return where the data of a contiguous array lie; the array must outlive the use."""
    try:
        return addressof(from_buffer(array))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):  # read-only, or empty; five times as slow
        return array.__array_interface__["data"][0]
