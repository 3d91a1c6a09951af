"""What an executor tells of the network that it has loaded."""

import msgspec

from mem_cache.spec import CacheSpec, PoolSizes
from runtime.rank_memory import RankMemory

__all__ = ["Facts", "Loaded"]

Facts = dict[str, str | int | float | bool]


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """A network on its devices, ready for steps.

    context_tokens  longest prompt plus output
    pool_bytes      of all pools of one rank, dummies included
    graphs          decode steps are replayed as CUDA graphs
    in_flight       a step may be launched before the one before it is settled
    facts           of the device and the network, for /server_info
    step_context    tokens before and in the chunks of a prefill step of several rows that memory
                    was measured for; None: it needs no bound
    step_samples    likewise, rows that a prefill step samples
    memory          of each rank, in their order; a rank tells its own
    """

    cache: CacheSpec
    sizes: PoolSizes
    context_tokens: int
    pool_bytes: int
    graphs: bool
    in_flight: bool
    facts: Facts
    step_context: int | None = None
    step_samples: int | None = None
    memory: list[RankMemory] = []
