"""Attention of few decoding rows in CUDA C++ for Hopper; other calls go to FlashMLA.

A row's tiles of 64 keys are dealt out to teams of four blocks, a block a tile. Blocks of a team
send each other values and weights through shared memory, so that each sums a quarter of the
channels over all keys of the team: less is sent than if whole sums were. Where a row has several
teams they leave their sums in memory, and a second launch adds them up, in one order. Where there
are fewer teams than a row's tiles want, blocks take several tiles one after the other.

The order in which a row's keys are added up follows from its own lengths, unless there are more
tiles than blocks. But in other company a row goes to FlashMLA: so do calls whose bits must not
depend on that. The sources are in `cuda`; nvcc compiles them at first use.
"""

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from jit_kernels.cuda_device import launched
from jit_kernels.cuda_library import load
from jit_kernels.paged_attention import KEY_TILE, flash_mla_backend

if TYPE_CHECKING:
    from jit_kernels.paged_attention import PagedKeys, SplitPlan

# Tiles that a block takes one after the other at most where few rows fill their columns, and how
# few these are. Of more rows are taken what have a block for each tile. Measured on an H200 that
# holds 30 teams, us: 8 rows of 640 keys 13.5, 16 of 128 9.9, of 192 10.7; but 16 of 640 22.5, 32 of
# 128 18.4, 32 of 640 42, 64 of 128 27, where FlashMLA takes 14.4 for 64 rows of 128 keys and 23.1
# for 32 of 640. In a decode step 2, 3 and 4 rows of 7,168 keys take 18, 13 and 10 less than by
# FlashMLA, 8 rows 13 more.
MOST_ROUNDS, ROUND_ROWS = 5, 4
# Teams of a row at most, 32 or fewer. With 1 no row is split.
MOST_TEAMS = 32
# Blocks of a team, as in `cuda/layout.cuh`; 64 heads are multiplied at once, however few there are.
_TEAM, _HEADS = 4, 64


def paged_attention(
    q: torch.Tensor,
    window: "PagedKeys",
    extra: "PagedKeys | None",
    sink: torch.Tensor,
    scale: float,
    plan: "SplitPlan",
    deterministic: bool,
) -> torch.Tensor:
    """Attend; see `jit_kernels.paged_attention.paged_attention`."""
    teams = 0 if deterministic else teams_of(q, window, extra)
    if not teams:
        return flash_mla_backend.paged_attention(q, window, extra, sink, scale, plan, deterministic)
    return attend(q, window, extra, sink, scale, teams)


def attend(
    q: torch.Tensor,
    window: "PagedKeys",
    extra: "PagedKeys | None",
    sink: torch.Tensor,
    scale: float,
    teams: int,
) -> torch.Tensor:
    """Attend with so many teams for each row, which may be fewer than there are tiles for.

    Heads are at most 64, rows at least one, pages begin at multiples of 16 bytes, and lengths stand
    side by side.
    """
    assert teams <= MOST_TEAMS, "a row has no more teams"
    assert most_teams(q.device), "the device takes no teams"
    rows, heads, width = q.shape
    if q.stride(2) != 1 or q.stride(1) != width or q.stride(0) % 8 or q.data_ptr() % 16:
        q = q.clone(memory_format=torch.contiguous_format)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    left = rows * teams * _team_numbers() if teams > 1 else 0
    parts = torch.empty(left, dtype=torch.float32, device=q.device)
    error = launched(
        q.device,
        _library().paged_attention_call,
        *(q.data_ptr(), q.stride(0), *_arguments(window), *_arguments(extra)),
        *(sink.contiguous().data_ptr(), out.data_ptr(), scale),
        *(rows, heads, teams, parts.data_ptr()),
    )
    if error:
        words = _library().paged_attention_words(error).decode()
        raise RuntimeError(f"paged_attention: {words}")
    return out


def teams_of(q: torch.Tensor, window: "PagedKeys", extra: "PagedKeys | None") -> int:
    """Return how many teams each row of such a call has; 0: it is left to FlashMLA."""
    if not _takes(q, window, extra):
        return 0
    columns = window.slots.shape[1] + (0 if extra is None else extra.slots.shape[1])
    return teams_for(q.shape[0], columns // KEY_TILE, most_teams(q.device))


def teams_for(rows: int, tiles: int, most: int) -> int:
    """Return how many teams take the tiles of each row on a device that holds `most`.

    It is 0 where there are too many rows and tiles. It depends on nothing that a step decides.
    """
    wanted, held = -(-tiles // _TEAM), most // rows
    rounds = MOST_ROUNDS if rows <= ROUND_ROWS else 1
    return min(wanted, MOST_TEAMS, held) if wanted <= rounds * held else 0


def _takes(q: torch.Tensor, window: "PagedKeys", extra: "PagedKeys | None") -> bool:
    """Say whether the kernel takes such queries and keys."""
    sets = [window] if extra is None else [window, extra]
    aligned = all(keys.pages.data_ptr() % 16 == 0 for keys in sets)
    dense = all(keys.lengths is None or keys.lengths.is_contiguous() for keys in sets)
    return bool(q.numel()) and q.shape[1] <= _HEADS and aligned and dense


def _arguments(keys: "PagedKeys | None") -> tuple[int | None, ...]:
    """Return pages, slots, their row stride, lengths, columns, rows and bytes of a page."""
    if keys is None:
        return None, None, 0, None, 0, 1, 0
    lengths = None if keys.lengths is None else keys.lengths.data_ptr()
    slots, layout = keys.slots, keys.layout
    return (
        *(keys.pages.data_ptr(), slots.data_ptr(), slots.stride(0), lengths, slots.shape[1]),
        *(layout.page_rows, layout.page_bytes),
    )


@functools.cache
def most_teams(device: torch.device) -> int:
    """Return how many teams a device holds at once, 0 if it cannot run them; at most 32.

    Calls come after this: it prepares the device for them.
    """
    with torch.cuda.device(device):
        return _library().paged_attention_teams()


@functools.cache
def _library() -> ctypes.CDLL:
    library = load("paged_attention", Path(__file__).parent / "cuda")
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
    keys = [pointer, pointer, wide, pointer, number, number, wide]
    library.paged_attention_call.argtypes = [
        *(pointer, wide, *keys, *keys, pointer, pointer, ctypes.c_float),
        *(number, number, number, pointer, pointer),
    ]
    library.paged_attention_team_numbers.restype = ctypes.c_longlong
    library.paged_attention_words.restype = ctypes.c_char_p
    return library


@functools.cache
def _team_numbers() -> int:
    """Return how many numbers of float32 a team leaves."""
    return _library().paged_attention_team_numbers()
