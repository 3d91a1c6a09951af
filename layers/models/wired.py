"""What a network in plain numbers is made of, whatever its layers are."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from torch import Tensor

from layers.linear.contract import Named

__all__ = ["Wired"]

StepT_contra = TypeVar("StepT_contra", contravariant=True)


class Wired(Protocol[StepT_contra]):
    """Embedding, layers and head; `layers.models.plain_decoder.Decoder` is one."""

    def run(
        self, input_ids: Tensor, step: StepT_contra, halfway: Callable[[], None] | None = None
    ) -> Tensor:
        """Return the stream behind the last layer, [T, d] float32; `step` writes the pools.

        halfway  called when half of the layers are launched
        """
        ...

    def logits(self, h: Tensor) -> Tensor:
        """Return the logits of tokens, [T, vocab] float32."""
        ...

    def named_weights(self) -> Named:
        """Yield (name in published files, where it goes) of every weight."""
        ...
