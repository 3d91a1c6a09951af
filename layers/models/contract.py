"""What the runtime knows of a model: two protocols, and no family by name.

A `Model` is a checkpoint's configuration; `build` puts a `Network` of it on a device, without
weights yet. The network says what the cache has to hold, makes the pools, and runs steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from layers.models.unit_views import UnitViews
from layers.parallel.ranks import Ranks
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import FedTokens, ForwardBatch, Forwarded
from layers.steps.pieces import Capture
from layers.weights.loading import NamedWeights
from mem_cache.spec import CacheSpec, PoolSizes

__all__ = [
    "CudaNetwork",
    "Model",
    "ModelFacts",
    "Network",
    "Pools",
    "Settings",
]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a configuration says that the runtime needs.

    context_tokens  longest sequence
    eos_token_ids   ids of config.json, then those that only generation_config.json has
    """

    model_type: str
    architectures: tuple[str, ...]
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_tokens: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a network is to compute, as flags say; "auto" leaves it to the model and the device.

    dtype           "auto", "float32" or "bfloat16", of matrices and activations
    kv_cache_dtype  "auto", "fp8", "bf16" or "fp32", of what pools hold
    experts         "auto", "fp4", "fp8" or "both", the forms in which routed experts are kept
    deterministic   a token's bits depend on its prefix alone
    weight_bytes    that weights of all ranks may take where forms differ in size; None: no limit
    draft_tokens    most guessed tokens of a row in a step, 0 to 7
    """

    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    experts: str = "auto"
    deterministic: bool = False
    weight_bytes: int | None = None
    draft_tokens: int = 0


class Pools(Protocol):
    """The device memory of a cache: units of each pool, across all layers.

    Where a network has no windows, or no state, nobody asks for copies of them.
    """

    @property
    def bytes(self) -> int:
        """Bytes of all of it, dummies included."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Return all of it by name."""
        ...

    def copy_full_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy full pages (source, destination), one after the other."""
        ...

    def copy_swa_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy SWA pages (source, destination), one after the other."""
        ...

    def copy_states(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copy states (source, destination, position of the source), one after the other.

        Units up to `PoolSizes.live_states` have the rows' form, those behind it that of resume
        points: what is copied from one to the other is packed, or unpacked.
        """
        ...

    def unit_views(self) -> UnitViews:
        """Return all of it as bytes by unit, for copies to pools of another rank or server."""
        ...


class Network(NamedWeights, Protocol):
    """A network on a device."""

    @property
    def cache(self) -> CacheSpec:
        """What the cache has to hold."""
        ...

    @property
    def facts(self) -> Mapping[str, str]:
        """How it computes, for /server_info: "dtype", "record_format" and what else there is."""
        ...

    def pools(self, sizes: PoolSizes) -> Pools:
        """Return pools on the device, of any content that steps bear."""
        ...

    def prefill(
        self,
        batch: ForwardBatch,
        pools: Any,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
        counts: Sequence[int] | None = None,
    ) -> Forwarded:
        """Run a step; return `batch.logit_tokens`' logits, and which rows are finite.

        batch    in host memory: the host does not wait for the device
        pools    from `pools`
        fed      tokens that are not the batch's but the device's
        halfway  called when half of the layers are launched
        counts   tokens of each rank, where each has its own rows; None: all have as many
        """
        ...


class CudaNetwork(Network, Protocol):
    """A network on a CUDA device, whose decode steps can be graphs."""

    def decode(self, rows: DecodeRows, pools: Any) -> Tensor:
        """Run one token of each row and return their logits, [B, vocab] float32.

        Launches alone: a CUDA graph can hold it. Pools are written in place. Where ranks have rows
        of their own, each has as many in such a step.
        """
        ...

    @property
    def piecewise(self) -> bool:
        """Return whether small prefill steps can replay graphs between attentions."""
        ...

    def capture_prefill(self, sizes: Sequence[int], capture: Capture) -> None:
        """Have small prefill steps replay graphs between attentions, in a piecewise network.

        sizes  numbers of tokens, ascending; none where it is empty
        """
        ...


class Model(Protocol):
    """One checkpoint's configuration."""

    @property
    def facts(self) -> ModelFacts:
        """What it says."""
        ...

    @property
    def wheels(self) -> Sequence[str]:
        """Names of the vendors' packages that it needs on a CUDA device, as pip knows them."""
        ...

    def check_cuda(self) -> None:
        """Raise ConfigFault, naming the field, for what the kernels of CUDA devices do not take."""
        ...

    def smaller(self, settings: Settings) -> str | None:
        """Return the advice to whom its weights on a CUDA device are too large, None for none."""
        ...

    def own_rows_bytes(self, device: str, settings: Settings, world: int) -> int:
        """Return about how many bytes of weights each of `world` ranks with rows of its own has.

        device  type of device, "cpu" or "cuda"

        Raises ConfigFault where no rank of this model has rows of its own, UnevenShares where so
        many ranks cannot share its experts.
        """
        ...

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> Network:
        """Return the network with its weights allocated, a `CudaNetwork` on a CUDA device.

        ranks  this rank among those that share the network; None: there is one

        Raises ConfigFault for settings that do not suit it, UnevenShares for ranks that cannot
        share it.
        """
        ...
