"""A step over packed pages on a GPU, whose tokens attend the positions that an indexer chooses."""

from torch import Tensor

from jit_kernels.paged_sparse import SparsePlan, paged_sparse
from jit_kernels.sparse_index import index_queries, store_index_keys
from layers.blocks.rope import HalfRope
from layers.models.mla.choice import Choice
from layers.models.mla.sparse_pools import SparsePools
from layers.models.mla.sparse_step import Ropes, Wanted
from layers.models.mla.step import PlacedStep
from layers.steps.page_places import PagePlaces

__all__ = ["PackedStep"]


class PackedStep(PlacedStep):
    """A step of chunks or of decoding rows; a `ChoosingStep`.

    Records and keys are written before any is read, and read in the form in which they are kept.
    """

    def __init__(
        self,
        places: PagePlaces,
        pools: SparsePools,
        ropes: Ropes,
        choice: Choice,
        *,
        deterministic: bool,
    ) -> None:
        """Derive what the layers share; see `PlacedStep`."""
        super().__init__(places, pools.records, ropes.heads, deterministic=deterministic)
        self._pools, self._choice = pools, choice
        self._index_halves = isinstance(ropes.indexer, HalfRope)
        self._index_rotation = ropes.indexer.rotation(places.position)
        self._plan = SparsePlan()

    def store_keys(self, layer: int, keys: Tensor) -> None:
        """Turn, transform and write indexer keys; see `ChoosingStep`."""
        store_index_keys(
            self._pools.key_groups(layer),
            self.places.slots,
            keys,
            self._index_rotation,
            self._pools.key_layout,
            halves=self._index_halves,
        )

    def attend(self, layer: int, q: Tensor, wanted: Wanted, *, scale: float) -> Tensor:
        """Choose, and attend what is chosen; see `ChoosingStep`."""
        codes, weights = index_queries(
            wanted.q, wanted.weights, self._index_rotation, halves=self._index_halves
        )
        pools = self._pools
        slots = self._choice.slots(pools.key_groups(layer), pools.key_layout, codes, weights)
        return paged_sparse(
            q,
            pools.records[layer],
            slots,
            scale=scale,
            plan=self._plan,
            invariant=self._deterministic,
        )
