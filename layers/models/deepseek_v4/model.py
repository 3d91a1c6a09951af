"""DeepSeek V4 as a `Model`: its configuration, its pools, and the network on a device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from layers.blocks.hyper_connection import BlockResult
from layers.blocks.rope import RopeFrequencies, frequencies
from layers.experts.contract import ExpertForm
from layers.kinds import PlainKinds, QuantisedKinds
from layers.linear.contract import Named
from layers.models.contract import ModelFacts, Settings
from layers.models.deepseek_v4.config import (
    ModelConfig,
    check_geometry_of_kernels,
    parse_checked,
    pool_spec,
    resolve_record_format,
)
from layers.models.deepseek_v4.expert_form import expert_bytes, expert_form, smaller_form
from layers.models.deepseek_v4.layout import cache_spec
from layers.models.deepseek_v4.network import DeepseekV4
from layers.models.deepseek_v4.pool_spec import PoolSpec, RecordFormat
from layers.models.deepseek_v4.pools import KvPools
from layers.models.json_fields import ConfigFault
from layers.parallel.ranks import HostRanks, OneRank, Ranks
from layers.parallel.shares import Shares
from layers.steps.chunks.step import PrefillStep
from layers.steps.contract import ChunkStep, StepSizes
from layers.steps.decode_rows import DecodeRows
from layers.steps.decode_step import DecodeStep
from layers.steps.forward_batch import FedTokens, ForwardBatch, Forwarded
from layers.steps.pieces import Capture, PrefillPieces
from layers.steps.reference.reference_step import ReferenceStep
from layers.weights.part import Part
from mem_cache.spec import CacheSpec, PoolSizes

__all__ = ["QuantisedV4", "ReferenceV4", "V4Model", "angles", "read"]


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "V4Model":
    """Return the model of parsed files; see `layers.models.registry`."""
    return V4Model(parse_checked(raw, generation, override))


def angles(config: ModelConfig, device: torch.device) -> RopeFrequencies:
    """Return by what channels turn, in layers without and with compression."""
    width = config.qk_rope_head_dim
    return RopeFrequencies(
        frequencies(width, config.rope_theta, None),
        frequencies(width, config.compress_rope_theta, config.rope_scaling),
        device,
    )


class V4Model:
    """A checkpoint's configuration; a `Model`."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @property
    def facts(self) -> ModelFacts:
        """What the configuration says."""
        config = self.config
        return ModelFacts(
            model_type=config.model_type,
            architectures=config.architectures,
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
            context_tokens=config.max_position_embeddings,
            eos_token_ids=config.eos_token_ids,
        )

    @property
    def wheels(self) -> Sequence[str]:
        """What it needs on a CUDA device; see `Model`."""
        return ("sgl-deep-gemm", "sgl-flash-mla")

    def check_cuda(self) -> None:
        """Raise ConfigFault, naming the field, for a geometry that the kernels do not take."""
        check_geometry_of_kernels(self.config)

    def smaller(self, settings: Settings) -> str | None:
        """Return what would make the weights smaller; see `Model`."""
        return smaller_form(self.config, self._form(settings))

    def own_rows_bytes(self, device: str, settings: Settings, world: int) -> int:
        """Return the bytes of a rank's weights; see `Model`.

        On CUDA experts count in the smallest form that flags allow. All else counts as bfloat16,
        although projections are fp8 there.
        """
        on_cuda, ranks = device == "cuda", HostRanks(Shares(0, world, "data"))
        plain = replace(settings, dtype="bfloat16") if on_cuda else settings
        experts = rest = 0
        for name, target in self.build(torch.device("meta"), plain, ranks).named_weights():
            weight = target.target if isinstance(target, Part) else target
            # Plain numbers are tensors.
            size = cast(Tensor, weight).nbytes
            if ".experts." in name:
                experts += size
            else:
                rest += size
        if on_cuda:
            form = self._form(replace(settings, weight_bytes=0))
            experts = expert_bytes(self.config, form) // world
        return rest + experts

    def _form(self, settings: Settings) -> ExpertForm:
        wanted = None if settings.experts == "auto" else cast(ExpertForm, settings.experts)
        return expert_form(self.config, wanted, room=settings.weight_bytes)

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "ReferenceV4 | QuantisedV4":
        """Return the network; see `Model`."""
        if device.type == "cuda":
            if settings.kv_cache_dtype not in ("auto", "fp8"):
                raise ConfigFault(
                    f"kv_cache_dtype {settings.kv_cache_dtype} is for the CPU: on a GPU records of "
                    f"model_type {self.config.model_type} are fp8"
                )
            return QuantisedV4(
                self.config,
                device,
                experts=self._form(settings),
                deterministic=settings.deterministic,
                draft_tokens=settings.draft_tokens,
                ranks=ranks,
            )
        dtype = "float32" if settings.dtype == "auto" else settings.dtype
        return ReferenceV4(
            self.config,
            device,
            getattr(torch, dtype),
            record_format=resolve_record_format(self.config, settings.kv_cache_dtype, dtype),
            draft_tokens=settings.draft_tokens,
            ranks=ranks,
        )


class _OnDevice(ABC):
    """What both networks have in common: the wiring, its pools, and what steps need of it."""

    def __init__(
        self,
        config: ModelConfig,
        kinds: PlainKinds | QuantisedKinds,
        spec: PoolSpec,
        ranks: Ranks | None,
    ) -> None:
        self.config, self.spec, self.device = config, spec, kinds.device
        self._wired = DeepseekV4(config, kinds, ranks or OneRank())
        self._sizes = StepSizes(config.index_topk, config.rms_norm_eps)
        self._rope = angles(config, kinds.device)

    @property
    def cache(self) -> CacheSpec:
        """What the cache has to hold."""
        return cache_spec(self.spec)

    def pools(self, sizes: PoolSizes) -> KvPools:
        """Return pools on the device; see `Network`."""
        return KvPools(self.spec, sizes, self.device)

    def named_weights(self) -> Named:
        """Yield (name in published files, where it goes) of every weight."""
        yield from self._wired.named_weights()

    @torch.inference_mode()
    def prefill(
        self,
        batch: ForwardBatch,
        pools: KvPools,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
        counts: Sequence[int] | None = None,
    ) -> Forwarded:
        """Run a step of chunks; see `Network`."""
        step = self._chunks(batch, pools)
        if fed is not None:
            step.input_ids.index_copy_(0, fed.at, fed.ids)
        result = self._run(step, halfway, counts)
        finite = step.finite_rows(result.finite())
        return Forwarded(self._wired.logits(result.of(step.logit_tokens)), finite)

    @abstractmethod
    def _chunks(self, batch: ForwardBatch, pools: KvPools) -> ChunkStep:
        """Return the step of a batch."""

    def _run(
        self,
        step: ChunkStep,
        halfway: Callable[[], None] | None,
        counts: Sequence[int] | None,
    ) -> BlockResult:
        """Return what the last layer makes."""
        return self._wired.run(step, halfway, counts)


class ReferenceV4(_OnDevice):
    """The network in plain numbers; a row's result does not depend on its company.

    The same token at the same position after the same tokens gives the same bits, whatever the
    chunks, the other rows, and what was reused instead of computed. Gates, compressors, norms and
    stream mixing are float32 in any case.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        *,
        record_format: RecordFormat = "fp32",
        draft_tokens: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        """Allocate all weights; `dtype` is that of matrices and activations."""
        spec = pool_spec(config, record_format, draft_tokens=draft_tokens)
        super().__init__(config, PlainKinds(device, dtype), spec, ranks)
        self._dtype = dtype

    @property
    def facts(self) -> Mapping[str, str]:
        """How it computes."""
        dtype = str(self._dtype).removeprefix("torch.")
        return {"dtype": dtype, "record_format": self.spec.record_format}

    def _chunks(self, batch: ForwardBatch, pools: KvPools) -> ChunkStep:
        return ReferenceStep(batch, pools, self._sizes, self._rope)


class QuantisedV4(_OnDevice):
    """The network over weights as files hold them: bfloat16 streams and activations, float32 sums.

    What is summed in which order depends on how many tokens a step has, unless the network is
    deterministic: then a token has the same bits alone or in company, in any chunking, decoded or
    prefilled.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        *,
        experts: ExpertForm,
        deterministic: bool = False,
        draft_tokens: int = 0,
        ranks: Ranks | None = None,
    ) -> None:
        """Allocate all weights.

        experts        form in which routed experts are kept; a deterministic network keeps of
                       "both" the one that it multiplies, fp4
        deterministic  a token's bits depend on its prefix alone; slower

        Raises ConfigFault for a geometry that the kernels do not take.
        """
        check_geometry_of_kernels(config)
        kinds = QuantisedKinds(device, experts=experts, deterministic=deterministic)
        spec = pool_spec(config, "fp8", draft_tokens=draft_tokens)
        super().__init__(config, kinds, spec, ranks)
        self._side, self.deterministic = kinds.side, deterministic
        self._form: ExpertForm = kinds.form
        self._pieces: PrefillPieces | None = None

    @property
    def facts(self) -> Mapping[str, str]:
        """How it computes."""
        return {"dtype": "bfloat16", "record_format": "fp8", "experts": self._form}

    @torch.inference_mode()
    def decode(self, rows: DecodeRows, pools: KvPools) -> Tensor:
        """Run one token of each row; see `CudaNetwork`."""
        # Embedding and first mix ask nothing of the step but its tokens.
        with self._side.beside(rows.input_ids.shape[0]):
            step = DecodeStep(
                rows, pools, self._sizes, self._rope, deterministic=self.deterministic
            )
        return self._wired.logits(self._wired.run(step))

    @property
    def piecewise(self) -> bool:
        """Return that small prefill steps can replay graphs; see `CudaNetwork`."""
        return True

    @torch.inference_mode()
    def capture_prefill(self, sizes: Sequence[int], capture: Capture) -> None:
        """Have small prefill steps replay graphs; see `CudaNetwork`."""
        self._pieces = None
        if sizes:
            self._pieces = PrefillPieces(
                self._wired,
                rotated=self.config.qk_rope_head_dim,
                sizes=sizes,
                capture=capture,
                device=self.device,
            )

    def _chunks(self, batch: ForwardBatch, pools: KvPools) -> ChunkStep:
        return PrefillStep(batch, pools, self._sizes, self._rope, deterministic=self.deterministic)

    def _run(
        self,
        step: ChunkStep,
        halfway: Callable[[], None] | None,
        counts: Sequence[int] | None,
    ) -> BlockResult:
        if counts is None and self._pieces is not None and self._pieces.hold(step):
            return self._pieces.run(step, halfway)
        return super()._run(step, halfway, counts)
