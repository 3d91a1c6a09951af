"""A step of chunks or of decoding rows over bfloat16 pages, some of whose layers have a window."""

import torch
from torch import Tensor

from jit_kernels.gqa_heads import HeadWeights, gqa_heads
from jit_kernels.paged_gqa import PagedRows, paged_gqa
from layers.blocks.rope import HalfRope
from layers.models.gpt_oss.pools import WindowPools
from layers.steps.page_places import PagePlaces
from layers.steps.window_places import Workspace

__all__ = ["Bf16WindowStep"]

_Pages = tuple[Tensor, Tensor]


class Bf16WindowStep:
    """What the layers of one step share, derived once; a `SinkStep`.

    What is not finite is stored as 0, and all pages begin as zeros: attention multiplies what lies
    outside of a window by 0.
    """

    def __init__(
        self, places: PagePlaces, pools: WindowPools, rope: HalfRope, *, deterministic: bool
    ) -> None:
        """Derive it.

        deterministic  what a token reads has the same bits in any company and chunk
        """
        self._places, self._pools, self._deterministic = places, pools, deterministic
        self._rotation = rope.rotation(places.position)
        self._workspace: _Pages | None = None
        window = places.window
        if window is not None and window.workspace is not None:
            shape = (2, window.workspace.pages, *pools.swa_keys.shape[2:])
            room = torch.zeros(shape, dtype=torch.bfloat16, device=places.position.device)
            self._workspace = room[0], room[1]

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        return self._places.input_ids

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        return self._places.logit_tokens

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        return self._places.finite_rows(x)

    def read(self, layer: int, made: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        """Write and attend, in bfloat16; see `SinkStep`."""
        pools, places, nth = self._pools, self._places, self._pools.layout.nth[layer]
        weights = HeadWeights(bias, None, 0.0)
        if not pools.layout.sliding[layer]:
            pages = pools.keys[nth], pools.values[nth]
            q = self._heads(made, pages, places.slots, weights)
            return self._attend(q, pages, places.rows, sinks)
        window, held = places.window, (pools.swa_keys[nth], pools.swa_values[nth])
        assert window is not None
        pages, workspace = held, window.workspace
        if workspace is not None:
            pages = self._filled(held, workspace)
        q = self._heads(made, pages, window.slots, weights)
        out = self._attend(q, pages, window.rows, sinks, window=pools.layout.window)
        if workspace is not None:
            for room, target in zip(pages, held, strict=True):
                _copy(room, workspace.save_from, target, workspace.save_to)
        return out

    def _filled(self, held: _Pages, workspace: Workspace) -> _Pages:
        """Return the workspace with what windows of a layer hold before the chunks."""
        assert self._workspace is not None
        for source, room in zip(held, self._workspace, strict=True):
            _copy(source, workspace.read_from, room, workspace.read_to)
        return self._workspace

    def _heads(self, made: Tensor, pages: _Pages, slots: Tensor, weights: HeadWeights) -> Tensor:
        return gqa_heads(made, self._rotation, *pages, slots, weights, out_dtype=torch.bfloat16)

    def _attend(
        self, q: Tensor, pages: _Pages, rows: PagedRows, sinks: Tensor, *, window: int = 0
    ) -> Tensor:
        return paged_gqa(
            q,
            *pages,
            rows,
            scale=q.shape[2] ** -0.5,
            window=window,
            sink=sinks,
            invariant=self._deterministic,
        )


def _copy(source: Tensor, places: Tensor, target: Tensor, slots: Tensor) -> None:
    """Copy slots of pages [U, P, ...] to slots of others."""
    target.flatten(0, 1).index_copy_(0, slots, source.flatten(0, 1).index_select(0, places))
