"""These families as a `Model`: configuration, pools, and the network on the CPU."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from layers.blocks.rope import HalfRope, frequencies
from layers.kinds import PlainKinds
from layers.linear.contract import Named
from layers.models.contract import ModelFacts, Settings
from layers.models.gqa.config import GqaConfig, parse_config
from layers.models.gqa.network import GqaNetwork
from layers.models.gqa.pools import KeyValuePools, PageShape
from layers.models.gqa.step import PagedStep
from layers.models.json_fields import ConfigFault
from layers.parallel.ranks import OneRank, Ranks
from layers.steps.forward_batch import FedTokens, ForwardBatch, Forwarded
from mem_cache.spec import CacheSpec, Paged, PoolSizes

__all__ = ["GqaModel", "PlainGqa", "read"]

_PAGE_TOKENS = 256
_RECORDS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_OWN_RECORDS = {torch.float32: "fp32", torch.bfloat16: "bf16"}


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "GqaModel":
    """Return the model of parsed files; see `layers.models.registry`."""
    return GqaModel(parse_config(raw, generation, override))


class GqaModel:
    """A checkpoint's configuration; a `Model`."""

    def __init__(self, config: GqaConfig) -> None:
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
    ) -> "PlainGqa":
        """Return the network; see `Model`."""
        if device.type == "cuda":
            self.check_cuda()
        if ranks is not None and ranks.shares.attention == "data":
            raise ConfigFault(f"ranks with rows of their own are not for model_type {self._kind}")
        dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
        records = settings.kv_cache_dtype
        if records == "auto":
            records = _OWN_RECORDS[dtype]
        if records not in _RECORDS:
            raise ConfigFault(f"kv_cache_dtype {records} is not for model_type {self._kind}")
        return PlainGqa(
            self.config,
            device,
            dtype,
            record_format=records,
            draft_tokens=settings.draft_tokens,
            ranks=ranks or OneRank(),
        )

    @property
    def _kind(self) -> str:
        return self.config.model_type


class PlainGqa:
    """The network in plain numbers; a row's result does not depend on its company.

    The same token at the same position after the same tokens gives the same bits, whatever the
    chunks, the other rows, and what was reused instead of computed. All but matrices and what is
    cached is float32 in any case.
    """

    def __init__(
        self,
        config: GqaConfig,
        device: torch.device,
        dtype: torch.dtype,
        *,
        record_format: str,
        draft_tokens: int,
        ranks: Ranks,
    ) -> None:
        """Allocate all weights; `dtype` is that of matrices."""
        self._layers, self._device, self._dtype = config.num_layers, device, dtype
        self._format = record_format
        self._draft_tokens = draft_tokens
        self._page = PageShape(
            _PAGE_TOKENS,
            ranks.shares.groups(config.key_heads).count,
            config.head_dim,
            _RECORDS[record_format],
        )
        kinds = PlainKinds(device, torch.float32, stored=dtype)
        self._wired = GqaNetwork(config, kinds, ranks)
        angles = frequencies(config.head_dim, config.rope.theta, config.rope.scaling)
        factor = config.rope.attention_factor
        self._rope = HalfRope(angles, attention_factor=factor, device=device)

    @property
    def cache(self) -> CacheSpec:
        """What the cache has to hold."""
        return CacheSpec(
            self._format,
            paged=(Paged("kv", self._layers * self._page.bytes),),
            page_size=_PAGE_TOKENS,
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

    def pools(self, sizes: PoolSizes) -> KeyValuePools:
        """Return pools on the device; see `Network`."""
        return KeyValuePools(self._layers, self._page, sizes, self._device)

    @torch.inference_mode()
    def prefill(
        self,
        batch: ForwardBatch,
        pools: KeyValuePools,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
        counts: Sequence[int] | None = None,
    ) -> Forwarded:
        """Run a step of chunks; see `Network`."""
        assert counts is None, "no rank has rows of its own"
        if fed is not None:
            batch.input_ids.index_copy_(0, fed.at, fed.ids)
        step = PagedStep(batch, pools, self._rope)
        h = self._wired.run(batch.input_ids, step, halfway)
        last = h.index_select(0, batch.logit_tokens)
        return Forwarded(self._wired.logits(last), step.finite_rows(h))
