"""A network of pages and windows on a Hopper GPU: bfloat16 weights, a float32 stream."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from layers.models.page_pools import PagePools
from layers.models.plain_decoder import Decoder
from layers.models.plain_model import PAGE_TOKENS, ChunkStep, Numbers, PlainNetwork
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch
from layers.steps.page_places import PagePlaces, of_chunks, of_rows
from layers.steps.pieces import Capture
from mem_cache.spec import Paged

__all__ = ["CudaDecoder"]

PoolsT = TypeVar("PoolsT", bound=PagePools)
StepT = TypeVar("StepT", bound=ChunkStep)


class CudaDecoder(PlainNetwork[PoolsT, StepT]):
    """A `CudaNetwork`; ops without a kernel for a device run their references there.

    What is summed in which order depends on how many tokens a step has, unless the network is
    deterministic: then a token has the same bits alone or in company, in any chunking, decoded or
    prefilled.
    """

    def __init__(
        self,
        wired: Decoder[StepT],
        numbers: Numbers,
        paged: Paged,
    ) -> None:
        """Take the network with its weights allocated, and what a page of all layers weighs.

        A page has `PAGE_TOKENS` positions, whatever pages on the CPU have.
        """
        assert numbers.dtype == torch.bfloat16
        super().__init__(wired, numbers, paged, page_tokens=PAGE_TOKENS)
        self._tree = self.cache.tree

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._numbers.device

    @abstractmethod
    def placed(self, places: PagePlaces, pools: PoolsT) -> StepT:
        """Return the step of tokens in these places."""

    def step(self, batch: ForwardBatch, pools: PoolsT) -> StepT:
        """Return what the layers of a step of chunks share."""
        return self.placed(of_chunks(batch, self._tree, self.device), pools)

    @torch.inference_mode()
    def decode(self, rows: DecodeRows, pools: PoolsT) -> Tensor:
        """Run one token of each row; see `CudaNetwork`."""
        step = self.placed(of_rows(rows, self._tree), pools)
        return self._wired.logits(self._wired.run(step.input_ids, step))

    @property
    def piecewise(self) -> bool:
        """Return that prefill steps are launched op by op; see `CudaNetwork`."""
        return False

    def capture_prefill(self, sizes: Sequence[int], capture: Capture) -> None:
        """Capture nothing; see `CudaNetwork`."""
        assert not sizes, "the network is not piecewise"
