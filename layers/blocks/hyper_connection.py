"""mHC: the streams a layer keeps, mixed into each block and back."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from jit_kernels.hyper_connection import mhc_head, mhc_post, mhc_post_pre_norm
from layers.blocks.norm import RmsNorm

__all__ = ["BlockResult", "HyperConnection", "HyperHead", "Streams"]


class BlockResult:
    """What a block made of its input, not yet mixed back into the streams.

    It is mixed once, and gives its tensors away then: those of many tokens are large, and callers
    may still name the result while the next block runs.
    """

    def __init__(self, y: Tensor, streams: Tensor, shares: Tensor) -> None:
        """Take what is mixed.

        y        [T, d]
        streams  [T, N, d]   as before the block
        shares   [T, N + 1, N] float32   how much of what is in each new stream
        """
        self._parts: tuple[Tensor, Tensor, Tensor] | None = (y, streams, shares)

    def take(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return y, streams and shares; they are the caller's alone."""
        parts, self._parts = self._parts, None
        assert parts is not None, "a block's result is mixed once"
        return parts

    def finite(self) -> Tensor:
        """Return which tokens are free of NaN and infinity in all parts, [T] bool.

        One read of the parts; nothing of their size is allocated, nothing is taken.
        """
        assert self._parts is not None, "a block's result is mixed once"
        y, streams, shares = self._parts
        # The largest magnitude; a NaN is passed on, by norm and maximum.
        largest = vector_norm(y, torch.inf, dim=-1).float()
        for part in (streams, shares):
            torch.maximum(largest, vector_norm(part, torch.inf, dim=(-2, -1)).float(), out=largest)
        return largest < torch.inf

    def of(self, tokens: Tensor) -> "BlockResult":
        """Take it, and return what there is of some tokens, [k] int64."""
        return BlockResult(*(part.index_select(0, tokens) for part in self.take()))

    def mixed(self) -> Tensor:
        """Take it, and return the new streams, [T, N, d]."""
        return mhc_post(*self.take())


@dataclass(frozen=True, slots=True)
class Streams:
    """Sizes and constants of all mixing in a network.

    count       streams
    width       channels of each
    iterations  of the Sinkhorn normalisation
    norm_eps    of norms, those of blocks among them
    hc_eps      of shares
    """

    count: int
    width: int
    iterations: int
    norm_eps: float
    hc_eps: float


class HyperConnection:
    """The mixing weights around one block; float32."""

    def __init__(self, streams: Streams, *, name: str, device: torch.device) -> None:
        """Allocate the weights, called `name` plus _fn, _base, _scale in files."""
        rows = (2 + streams.count) * streams.count
        self._name, self._streams = name, streams
        self._fn = _counted((rows, streams.count * streams.width), device)
        self._base = torch.zeros(rows, device=device)
        self._scale = torch.zeros(3, device=device)

    def pre_norm(self, before: BlockResult, norm: RmsNorm) -> tuple[Tensor, Tensor, Tensor]:
        """Return the block's input [T, d], normed, and the streams and shares of its result.

        before  what the block before made, which is taken; the norm's epsilon is that of `Streams`
        """
        streams, x, shares = mhc_post_pre_norm(
            *before.take(),
            self._fn,
            self._base,
            self._scale,
            norm.weight,
            iterations=self._streams.iterations,
            norm_eps=self._streams.norm_eps,
            hc_eps=self._streams.hc_eps,
        )
        return x, streams, shares

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield f"{prefix}{self._name}_fn", self._fn
        yield f"{prefix}{self._name}_base", self._base
        yield f"{prefix}{self._name}_scale", self._scale


class HyperHead:
    """The mixing weights before the final norm; float32."""

    def __init__(self, streams: Streams, *, name: str, device: torch.device) -> None:
        """Allocate the weights, called `name` plus _fn, _base, _scale in files."""
        self._name, self._streams = name, streams
        self._fn = _counted((streams.count, streams.count * streams.width), device)
        self._base = torch.zeros(streams.count, device=device)
        self._scale = torch.zeros(1, device=device)

    def __call__(self, streams: Tensor) -> Tensor:
        """Mix [T, N, d] into [T, d]."""
        return mhc_head(
            streams,
            self._fn,
            self._base,
            self._scale,
            norm_eps=self._streams.norm_eps,
            hc_eps=self._streams.hc_eps,
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights under their names in files."""
        yield f"{self._name}_fn", self._fn
        yield f"{self._name}_base", self._base
        yield f"{self._name}_scale", self._scale


def _counted(sizes: tuple[int, int], device: torch.device) -> Tensor:
    """Return zeros whose writes are counted, in inference mode too.

    What a GPU makes of `fn` is made again when it was written, and each time where nobody counts.
    """
    with torch.inference_mode(False):
        return torch.zeros(sizes, device=device)
