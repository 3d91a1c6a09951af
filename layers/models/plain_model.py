"""What models have in common that have pages alone: in plain numbers on the CPU, or on a GPU."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from layers.linear.contract import Named
from layers.models.contract import ModelFacts, Settings
from layers.models.json_fields import ConfigFault
from layers.models.page_pools import PagePools
from layers.models.wired import Wired
from layers.parallel.ranks import Ranks
from layers.steps.forward_batch import FedTokens, ForwardBatch, Forwarded
from mem_cache.spec import CacheSpec, Paged, PoolSizes

__all__ = [
    "CPU_PAGE_TOKENS",
    "PAGE_TOKENS",
    "RECORD_DTYPES",
    "ChunkStep",
    "CpuModel",
    "Numbers",
    "PlainNetwork",
]

PAGE_TOKENS = 256
# Half a page of each conversation holds nothing; the CPU's kernels take any size.
CPU_PAGE_TOKENS = 32
RECORD_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_OWN_RECORDS = {torch.float32: "fp32", torch.bfloat16: "bf16"}


class Numbers:
    """In which numbers a network computes and caches.

    device         where
    dtype          of matrices, float32 or bfloat16; on the CPU all but them and what is cached is
                   float32, on a GPU all is bfloat16 but the stream and sums
    records        name of the format of what is cached, of `RECORD_DTYPES` or the family's own
    drafts         most guessed tokens of a row in a step
    deterministic  a token's bits depend on its prefix alone, which they do on the CPU in any case
    """

    def __init__(
        self,
        device: torch.device,
        settings: Settings,
        model_type: str,
        formats: Collection[str] = RECORD_DTYPES,
        *,
        on_cuda: str = "bf16",
    ) -> None:
        """Resolve what settings leave open. Raises ConfigFault for what does not suit.

        formats  of what is cached
        on_cuda  the one of them that a GPU keeps
        """
        self.device, self.drafts = device, settings.draft_tokens
        self.deterministic = settings.deterministic
        there = device.type == "cuda"
        self.dtype: torch.dtype = torch.bfloat16 if there else torch.float32
        if settings.dtype != "auto":
            self.dtype = getattr(torch, settings.dtype)
        self.records = settings.kv_cache_dtype
        if self.records == "auto":
            self.records = on_cuda if there else _OWN_RECORDS[self.dtype]
        if self.records not in formats:
            raise ConfigFault(f"kv_cache_dtype {self.records} is not for model_type {model_type}")
        if settings.experts != "auto":
            raise ConfigFault(f"experts {settings.experts} is not for model_type {model_type}")
        if there and (self.dtype, self.records) != (torch.bfloat16, on_cuda):
            raise ConfigFault(
                f"on a GPU weights of model_type {model_type} are bfloat16, and its cache is "
                f"{on_cuda}: kv_cache_dtype {self.records} is for the CPU"
            )

    @property
    def page_tokens(self) -> int:
        """Return how many tokens a page has, where no layer has a window."""
        return PAGE_TOKENS if self.device.type == "cuda" else CPU_PAGE_TOKENS

    @property
    def record_dtype(self) -> torch.dtype:
        """Return the dtype of what is cached."""
        return RECORD_DTYPES[self.records]


class _Config(Protocol):
    """What configurations of such models have in common; the names are those of `ModelFacts`."""

    @property
    def model_type(self) -> str: ...
    @property
    def architectures(self) -> tuple[str, ...]: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_tokens(self) -> int: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...


ConfigT = TypeVar("ConfigT", bound=_Config)


class CpuModel(Generic[ConfigT]):
    """A `Model`, but for how it is built: a checkpoint's configuration."""

    def __init__(self, config: ConfigT) -> None:
        """Take it."""
        self.config = config

    @property
    def facts(self) -> ModelFacts:
        """What the configuration says."""
        config = self.config
        return ModelFacts(
            model_type=config.model_type,
            architectures=config.architectures,
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            context_tokens=config.context_tokens,
            eos_token_ids=config.eos_token_ids,
        )

    @property
    def wheels(self) -> Sequence[str]:
        """What it needs on a CUDA device; see `Model`."""
        return ("sgl-deep-gemm",)

    @property
    def formats(self) -> Collection[str]:
        """In which formats the family caches."""
        return RECORD_DTYPES

    @property
    def cuda_format(self) -> str:
        """In which of them it caches on a GPU."""
        return "bf16"

    def check_cuda(self) -> None:
        """Raise ConfigFault: there are no kernels for CUDA devices."""
        raise ConfigFault(f"model_type {self.facts.model_type} runs on the CPU: use --device cpu")

    def smaller(self, settings: Settings) -> str | None:
        """Return no advice; see `Model`."""
        del settings
        return None

    def own_rows_bytes(self, device: str, settings: Settings, world: int) -> int:
        """Raise ConfigFault: there are no ranks with rows of their own; see `Model`."""
        del device, settings, world
        raise self._no_own_rows()

    def _no_own_rows(self) -> ConfigFault:
        kind = self.facts.model_type
        return ConfigFault(f"ranks with rows of their own are not for model_type {kind}")

    def numbers(self, device: torch.device, settings: Settings, ranks: Ranks) -> Numbers:
        """Return how the network computes. Raises ConfigFault for what does not suit."""
        if device.type == "cuda":
            self.check_cuda()
        if ranks.shares.attention == "data":
            raise self._no_own_rows()
        kind = self.facts.model_type
        return Numbers(device, settings, kind, self.formats, on_cuda=self.cuda_format)


class ChunkStep(Protocol):
    """A step of chunks: T tokens of n rows."""

    @property
    def input_ids(self) -> Tensor:
        """Return the tokens, [T] int64."""
        ...

    @property
    def logit_tokens(self) -> Tensor:
        """Return which of the tokens logits are wanted of, [k] int64."""
        ...

    def finite_rows(self, x: Tensor) -> Tensor:
        """Return which rows have only finite tokens, [n] bool; `x` is [T, d]."""
        ...


PoolsT = TypeVar("PoolsT", bound=PagePools)
StepT = TypeVar("StepT", bound=ChunkStep)


class PlainNetwork(ABC, Generic[PoolsT, StepT]):
    """A `Network`; in plain numbers a row's result does not depend on its company.

    The same token at the same position after the same tokens then gives the same bits, whatever the
    chunks, the other rows, and what was reused instead of computed.
    """

    def __init__(
        self,
        wired: Wired[StepT],
        numbers: Numbers,
        paged: Paged,
        *,
        page_tokens: int | None = None,
    ) -> None:
        """Take the network with its weights allocated, and what a page of all layers weighs.

        page_tokens  of a page; None: as `numbers` says
        """
        self._wired, self._numbers, self._paged = wired, numbers, paged
        self._page_tokens = page_tokens or numbers.page_tokens

    @property
    def cache(self) -> CacheSpec:
        """What the cache has to hold."""
        return CacheSpec(
            self._numbers.records,
            paged=(self._paged,),
            page_size=self._page_tokens,
            swa_page_size=self._page_tokens,
            draft_tokens=self._numbers.drafts,
        )

    @property
    def facts(self) -> Mapping[str, str]:
        """How it computes."""
        dtype = str(self._numbers.dtype).removeprefix("torch.")
        return {"dtype": dtype, "record_format": self._numbers.records}

    def named_weights(self) -> Named:
        """Yield (name in published files, where it goes) of every weight."""
        yield from self._wired.named_weights()

    @abstractmethod
    def pools(self, sizes: PoolSizes) -> PoolsT:
        """Return pools on the device; see `Network`."""

    @abstractmethod
    def step(self, batch: ForwardBatch, pools: PoolsT) -> StepT:
        """Return what the layers of a step share."""

    @torch.inference_mode()
    def prefill(
        self,
        batch: ForwardBatch,
        pools: PoolsT,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
        counts: Sequence[int] | None = None,
    ) -> Forwarded:
        """Run a step of chunks; see `Network`."""
        assert counts is None, "no rank has rows of its own"
        step = self.step(batch, pools)
        if fed is not None:
            step.input_ids.index_copy_(0, fed.at, fed.ids)
        h = self._wired.run(step.input_ids, step, halfway)
        last = h.index_select(0, step.logit_tokens)
        return Forwarded(self._wired.logits(last), step.finite_rows(h))
