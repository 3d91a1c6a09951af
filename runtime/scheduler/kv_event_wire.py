"""Cache events as bytes: msgpack in the form that vLLM publishes and llm-d and Dynamo read.

    [time, [event, ...], rank]      event: a map with its class name under "type"

Source: vllm/distributed/kv_events.py of vLLM 0.33, whose events are maps; up to 0.23 they were
arrays. Fields at their default are left out, the same ones as there.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

# The first tier, whatever device holds it; readers weigh "CPU" as a slower one below it.
MEDIUM = "GPU"
# Every position is kept until its page goes, which is what readers want to know of a group.
GROUP, GROUP_KIND = 0, "full_attention"


class Stored(NamedTuple):
    """Consecutive whole pages of one sequence that are in the tree now.

    hashes   one a page, each 0 to 2^64 - 1
    parent   hash of the page before them; None at the top of a namespace
    tokens   [pages, page_size] int32
    """

    hashes: list[int]
    parent: int | None
    tokens: np.ndarray


class Removed(NamedTuple):
    """Pages that left the tree."""

    hashes: list[int]


class Cleared(NamedTuple):
    """The tree is empty."""


Event = Stored | Removed | Cleared


class _Event(msgspec.Struct, frozen=True, omit_defaults=True, tag=True):
    pass


class BlockStored(_Event, frozen=True):
    """Blocks that can be reused. Fields without a default are always sent."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(_Event, frozen=True):
    """Blocks that are gone."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(_Event, frozen=True):
    """No block is left."""


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """What one message holds. Source: vLLM's `KVEventBatch`."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


def encode_batch(time_s: float, events: Sequence[Event], rank: int = 0) -> bytes:
    """Return the payload of a message with `events`, in order.

    time_s  Unix time
    rank    of the replica whose cache changed
    """
    return msgspec.msgpack.encode(Batch(time_s, [_wire(event) for event in events], rank))


def _wire(event: Event) -> BlockStored | BlockRemoved | AllBlocksCleared:
    match event:
        case Stored():
            return BlockStored(
                event.hashes,
                event.parent,
                event.tokens.ravel().tolist(),
                event.tokens.shape[1],
                lora_id=None,
                medium=MEDIUM,
                lora_name=None,
                group_idx=GROUP,
                kv_cache_spec_kind=GROUP_KIND,
            )
        case Removed():
            return BlockRemoved(event.hashes, MEDIUM, GROUP)
        case Cleared():
            return AllBlocksCleared()
