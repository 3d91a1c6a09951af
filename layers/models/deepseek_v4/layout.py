"""Byte maps of V4's pools: what a record, a page and a state weigh, and where their parts lie.

    SWA page    swa_page_size records                of every layer
    C4 page     page_size / 4 records                of every layer that compresses by 4
    indexer     page_size / 4 indexer keys           likewise
    C128        page_size / 128 records              likewise for 128; blocks of 64 records hold the
                                                     records of as many pages as that is, in order
    state       C4 layers: `state_rows` rows; C128 layers: `state_banks` banks; of a resume point
                POOLED_TOKENS rows and POINT_BANKS banks

A packed record is 448 e4m3 + 64 bfloat16 (576 data bytes), 7 ue8m0 + 1 pad (8 scale bytes). In a
page of P records the data parts lie in [0, 576 P), the scale parts in [576 P, 584 P); the page is
padded to a multiple of 576. An fp8 indexer key is 128 e4m3 bytes and one float32 scale, split in
the same way. Source: layers/NETWORK.md, 7.
"""

from dataclasses import dataclass

from jit_kernels.kv_records import RECORD_DTYPES, packed_record_bytes
from jit_kernels.paged_rows import PageLayout
from layers.models.deepseek_v4.pool_spec import POINT_BANKS, POOLED_TOKENS, PoolSpec
from mem_cache.spec import CacheSpec, Paged, State, Window, div_ceil

__all__ = [
    "StateLayout",
    "cache_spec",
    "indexer_layout",
    "paged_groups",
    "record_layout",
    "state_groups",
    "state_layout",
    "window_group",
]

FLOAT_BYTES = 4
C128_PARTS = 3
# A page has so few C128 records that padding them page by page would add half their weight.
C128_BLOCK_RECORDS = 64


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Columns of a C4 state row: float32, what each token leaves for the blocks to come.

    Main kv, main gate with ape (2 head_dim each), indexer kv, indexer gate (2 index_head_dim
    each); each of the four is series a, then series b.
    """

    head_dim: int
    index_head_dim: int

    @property
    def width(self) -> int:
        """Float32 numbers in a row."""
        return 4 * self.head_dim + 4 * self.index_head_dim

    @property
    def main(self) -> tuple[int, int]:
        """First column of the main branch's kv, of its gate."""
        return 0, 2 * self.head_dim

    @property
    def index(self) -> tuple[int, int]:
        """First column of the indexer branch's kv, of its gate."""
        return 4 * self.head_dim, 4 * self.head_dim + 2 * self.index_head_dim


def record_layout(spec: PoolSpec, page_records: int) -> PageLayout:
    """Return where the KV records of a page of `page_records` lie."""
    if spec.record_format == "fp8":
        data, scale = packed_record_bytes(spec.head_dim, spec.rope_dim)
    else:
        data, scale = spec.head_dim * RECORD_DTYPES[spec.record_format].itemsize, 0
    size = div_ceil(page_records * (data + scale), data) * data
    return PageLayout(page_records, data, scale, size)


def indexer_layout(spec: PoolSpec) -> PageLayout:
    """Return where the indexer keys of a full page lie."""
    keys = spec.tree.page_size // 4
    if spec.record_format == "fp8":
        data, scale = spec.index_head_dim, FLOAT_BYTES
    else:
        data, scale = spec.index_head_dim * RECORD_DTYPES[spec.record_format].itemsize, 0
    size = div_ceil(keys * (data + scale), data) * data
    return PageLayout(keys, data, scale, size)


def state_layout(spec: PoolSpec) -> StateLayout:
    """Return the columns of a C4 state row."""
    return StateLayout(spec.head_dim, spec.index_head_dim)


def paged_groups(spec: PoolSpec) -> tuple[Paged, ...]:
    """Return what a full page holds: C4 records and indexer keys, C128 records."""
    c4, c128 = len(spec.layers_with_ratio(4)), len(spec.layers_with_ratio(128))
    page = spec.tree.page_size
    groups: list[Paged] = []
    if c4:
        groups.append(Paged("c4", c4 * record_layout(spec, page // 4).page_bytes))
        groups.append(Paged("indexer", c4 * indexer_layout(spec).page_bytes))
    if c128:
        block = record_layout(spec, C128_BLOCK_RECORDS).page_bytes
        each = div_ceil(block * (page // 128), C128_BLOCK_RECORDS)
        groups.append(Paged("c128", c128 * each))
    return tuple(groups)


def window_group(spec: PoolSpec) -> Window:
    """Return what an SWA page holds: records of every layer."""
    page_bytes = spec.num_layers * record_layout(spec, spec.tree.swa_page_size).page_bytes
    return Window("swa", spec.tree.window, page_bytes)


def state_groups(spec: PoolSpec) -> tuple[State, ...]:
    """Return what rows and resume points keep: C4 state rows, C128 banks.

    Draft tokens make a row's state larger, not a resume point's.
    """
    row = FLOAT_BYTES * len(spec.layers_with_ratio(4)) * state_layout(spec).width
    bank = FLOAT_BYTES * len(spec.layers_with_ratio(128)) * C128_PARTS * spec.head_dim
    groups: list[State] = []
    if row:
        groups.append(State("c4 state", row * spec.state_rows, row * POOLED_TOKENS))
    if bank:
        groups.append(State("c128 state", bank * spec.state_banks, bank * POINT_BANKS))
    return tuple(groups)


def cache_spec(spec: PoolSpec) -> CacheSpec:
    """Return what the runtime knows of these pools."""
    return CacheSpec(
        record_format=spec.record_format,
        paged=paged_groups(spec),
        windows=(window_group(spec),),
        states=state_groups(spec),
        replay_tokens=spec.replay_tokens,
        page_size=spec.tree.page_size,
        swa_page_size=spec.tree.swa_page_size,
        draft_tokens=spec.tree.draft_tokens,
    )
