"""The adapter with another policy, to see what the policy is worth."""

from mem_cache.tree.policy import Lru
from tests.bench.cache.adapter import Umbra


class UmbraLru(Umbra):
    """Plain least-recently-used eviction."""

    name = "umbra-lru"
    policy = Lru
