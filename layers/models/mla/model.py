"""These families as a `Model`: configuration, pools, and the network on the CPU."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from layers.blocks.rope import HalfRope, PairRope, frequencies
from layers.kinds import PlainKinds
from layers.linear.contract import Named
from layers.models.contract import ModelFacts, Settings
from layers.models.json_fields import ConfigFault
from layers.models.mla.config import MlaConfig, parse_config
from layers.models.mla.network import MlaNetwork
from layers.models.mla.pools import LatentPools
from layers.models.mla.step import LatentStep
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import FedTokens, ForwardBatch, Forwarded
from mem_cache.spec import CacheSpec, Paged, PoolSizes

__all__ = ["MlaModel", "PlainMla", "read"]

_PAGE_TOKENS = 256
_RECORDS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_OWN_RECORDS = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "MlaModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return MlaModel(parse_config(raw, generation, override))


class MlaModel:
    """A checkpoint's configuration; a `Model`."""

    def __init__(self, config: MlaConfig) -> None:
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

    def check_cuda(self) -> None:
        """Raise ConfigFault: there are no kernels for CUDA devices."""
        raise ConfigFault(f"model_type {self.config.model_type} runs on the CPU: use --device cpu")

    def smaller(self, settings: Settings) -> str | None:
        """Return no advice; see `Model`."""

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "PlainMla":
        """Return the network; see `Model`."""
        if device.type == "cuda":
            self.check_cuda()
        dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
        records = settings.kv_cache_dtype
        if records == "auto":
            records = _OWN_RECORDS[dtype]
        if records not in _RECORDS:
            kind = self.config.model_type
            raise ConfigFault(f"kv_cache_dtype {records} is not for model_type {kind}")
        return PlainMla(
            self.config,
            device,
            dtype,
            record_format=records,
            draft_tokens=settings.draft_tokens,
            ranks=ranks or OneRank(),
        )


class PlainMla:
    """The network in plain numbers; a row's result does not depend on its company.

    The same token at the same position after the same tokens gives the same bits, whatever the
    chunks, the other rows, and what was reused instead of computed: every token attends in the same
    form. All but matrices and what is cached is float32 in any case.
    """

    def __init__(
        self,
        config: MlaConfig,
        device: torch.device,
        dtype: torch.dtype,
        *,
        record_format: str,
        draft_tokens: int,
        ranks: Ranks,
    ) -> None:
        """Allocate all weights; `dtype` is that of matrices."""
        self._device, self._dtype = device, dtype
        self._format, self._draft_tokens = record_format, draft_tokens
        fields, rope = config.heads, config.rope
        self._shape = (config.num_layers, _PAGE_TOKENS, fields.latent + fields.turned)
        self._turned = fields.turned
        self._wired = MlaNetwork(config, PlainKinds(device, torch.float32, stored=dtype), ranks)
        self._rope = (PairRope if config.interleaved else HalfRope)(
            frequencies(fields.turned, rope.theta, rope.scaling),
            attention_factor=rope.attention_factor,
            device=device,
        )

    @property
    def cache(self) -> CacheSpec:
        """What the cache has to hold."""
        layers, positions, channels = self._shape
        record = channels * _RECORDS[self._format].itemsize
        return CacheSpec(
            self._format,
            paged=(Paged("latent", layers * positions * record),),
            page_size=positions,
            draft_tokens=self._draft_tokens,
        )

    @property
    def facts(self) -> Mapping[str, str]:
        """How it computes."""
        dtype = str(self._dtype).removeprefix("torch.")
        return {"dtype": dtype, "record_format": self._format}

    def named_weights(self) -> Named:
        """Yield (name in published files, where it goes) of every weight."""
        yield from self._wired.named_weights()

    def pools(self, sizes: PoolSizes) -> LatentPools:
        """Return pools on the device; see `Network`."""
        return LatentPools(self._shape, _RECORDS[self._format], sizes, self._device)

    @torch.inference_mode()
    def prefill(
        self,
        batch: ForwardBatch,
        pools: LatentPools,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
    ) -> Forwarded:
        """Run a step of chunks; see `Network`."""
        if fed is not None:
            batch.input_ids.index_copy_(0, fed.at, fed.ids)
        step = LatentStep(batch, pools, self._rope, turned=self._turned)
        h = self._wired.run(batch.input_ids, step, halfway)
        last = h.index_select(0, batch.logit_tokens)
        return Forwarded(self._wired.logits(last), step.finite_rows(h))
