"""Mixture of experts over quantised weights: routed ones as fp4, fp8 or both, a shared one as fp8.

Few rows stream each chosen expert's weights once and keep activations in bfloat16; many rows are
sorted by expert and multiplied as fp8. Where bits must not depend on how many rows there are, all
are streamed, in blocks of one size.
"""

from collections.abc import Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from jit_kernels.expert_weights import Fp4Experts, Fp8Experts, expanded
from jit_kernels.grouped_moe import grouped_moe
from jit_kernels.quant_fp8 import quantise_rows, silu_mul_quant
from jit_kernels.streamed_moe import streamed_moe
from jit_kernels.vendor_calls import VendorCalls, vendor_calls
from layers.blocks.router import Router
from layers.blocks.side_stream import SideStream
from layers.experts.expert_form import ExpertForm
from layers.linear.quantised import Bf16Linear, Fp8Linear, Fp8Rows, Product
from layers.models.deepseek_v4.config import ModelConfig
from layers.parallel.shares import Shards
from layers.weights.weight_target import Fp4Target, Fp8Target, TwinTarget, WeightTarget

__all__ = ["ExpertForm", "FusedExperts", "expert_workspace"]

_BLOCK = 128
_GROUP = 32
# The most rows that stream their experts' weights; more are sorted by expert. Where that takes
# expanding a layer first, which moves three times what streaming reads, it pays later. Of 256
# experts, six for a row, on one H200: 512 rows streamed as fp4 1.60 ms, as fp8 2.63, sorted 1.91;
# 384 rows 1.37, 1.85 and 1.90; 768 rows 1.92, 2.67 and 1.91.
_STREAMED_ROWS: dict[ExpertForm, int] = {"fp4": 1024, "fp8": 384, "both": 512}
# Rows of a block where bits are fixed: twice as many would cost decoding more than it saves long
# prompts, and blocks of 8 change their tiles with the number of rows.
_FIXED_SIZE = 32
# What those rows may take at a time: an inner row in bfloat16 and a result in float32 a choice.
_FIXED_BYTES = 512 << 20


class FusedExperts:
    """Routed and shared experts of one layer; the counterpart of `layers.experts.plain.Experts`.

    fp4  the routed experts, unless they are kept as fp8 alone
    fp8  the same; where they are kept as fp4 alone, the workspace
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        *,
        shards: Shards,
        device: torch.device,
        form: ExpertForm,
        workspace: Fp8Experts | None = None,
        side: SideStream | None = None,
        deterministic: bool = False,
    ) -> None:
        """Allocate the weights of layer `layer`.

        side           where the shared expert runs beside the router; None: a stream of its own
        workspace      from `expert_workspace`, shared by all layers: many rows of a layer that
                       keeps fp4 alone expand its weights into it, unless `deterministic`
        deterministic  a row's bits depend on its own numbers alone; fp4 is multiplied, if it is
                       there, however many rows there are
        Raises ValueError when form is "fp4" and a workspace is missing, and ShapeError when
        `hidden_size` or `moe_intermediate_size` is no multiple of 128.
        """
        if form == "fp4" and workspace is None and not deterministic:
            raise ValueError("experts kept as fp4 alone need a workspace")
        width, inner = config.hidden_size, config.moe_intermediate_size
        self._shards, self._first = shards, shards.first(config.n_routed_experts)
        self._count = shards.share(config.n_routed_experts)
        self._width, self._inner, self._top_k = width, inner, config.num_experts_per_tok
        self._limit = config.swiglu_limit
        gate = {"gate": config.n_routed_experts}
        self._gate = Bf16Linear(width, gate, device=device, invariant=deterministic)
        self._router = Router(config, layer, device)
        self.fp4 = _fp4_experts(config, self._count, device) if form != "fp8" else None
        self.fp8 = _fp8_experts(config, self._count, device) if form != "fp4" else workspace
        self._expands, self._streamed_rows = form == "fp4", _STREAMED_ROWS[form]
        self._fixed_rows = 0
        if deterministic:
            each = config.num_experts_per_tok * (4 * width + 2 * inner)
            self._fixed_rows = max(1, _FIXED_BYTES // each)
        linear = partial(Fp8Linear, device=device, invariant=deterministic)
        self._fp8_rows = partial(Fp8Rows, invariant=deterministic)
        self._shared_in = linear(width, {"w1": inner, "w3": inner})
        self._shared_out = linear(inner, {"w2": width})
        self._side = side or SideStream(device)

    def __call__(self, x: Tensor, input_ids: Tensor) -> Tensor:
        """Return the experts' sum, [T, d] bfloat16.

        x          [T, d] bfloat16, normed
        input_ids  [T] int64, which layers with a table route by
        """
        with self._side.beside(x.shape[0]):
            rows = self._fp8_rows(x)
            hidden = self._shared_in.of(rows)
            shared = self._shared_out(*silu_mul_quant(hidden, limit=self._limit))

        def joined() -> Tensor:
            self._side.join()
            return shared

        gate, alike = self._gate.weight, self._fixed_rows > 0
        experts, weights = self._router.of(x, gate, input_ids, invariant=alike)
        if self._fixed_rows:
            y = self._streamed_alike(x, experts, weights, joined())
        elif self._sorts(x.shape[0]):
            plus = joined()
            codes, scales = rows.rounded or quantise_rows(x)
            parts, limit = self._expanded(), self._limit
            y = grouped_moe(codes, scales, experts, weights, parts, limit=limit, plus=plus)
        else:
            # The shared expert's last product may end beside the first of those chosen.
            streamed = self._streamed
            y = streamed_moe(x, experts, weights, streamed, limit=self._limit, plus=joined)
        return self._shards.all_reduce(y)

    @property
    def sizes(self) -> tuple[int | str, ...]:
        """Return what experts that share all kernels have in common; see `Product`."""
        return ("experts", self._count, self._width, self._inner)

    def rehearse(self, rows: int) -> None:
        """Run rows of zeros, spread over all experts, if so many are sorted; see `Product`."""
        if not self._sorts(rows):
            return
        assert self.fp8 is not None
        device = self.fp8.gate_up.device
        x = torch.zeros((rows, self._width), dtype=torch.bfloat16, device=device)
        experts = torch.arange(rows * self._top_k, device=device) % self._count
        experts = experts.view(rows, self._top_k)
        weights = torch.zeros(experts.shape, device=device)
        grouped_moe(*quantise_rows(x), experts, weights, self.fp8, limit=0.0)

    def calls(self, rows: Iterable[int]) -> list[VendorCalls]:
        """Return what routed rows call a vendor's library for; see `Product`."""
        sizes = (self._count, self._width, self._inner, self._top_k)
        return vendor_calls("grouped_moe", sizes, filter(self._sorts, rows))

    def products(self) -> Iterator[Product]:
        """Yield what the layer multiplies by."""
        yield from (self, self._shared_in, self._shared_out, self._gate)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor | WeightTarget]]:
        """Yield the weights under their names in files."""
        yield from self._gate.named_weights(prefix)
        yield from self._router.named_weights(f"{prefix}gate.")
        for expert in range(self._count):
            name = f"{prefix}experts.{self._first + expert}."
            for leaf, target in self._targets(expert).items():
                yield f"{name}{leaf}.weight", target
        for part in (self._shared_in, self._shared_out):
            yield from part.named_weights(f"{prefix}shared_experts.")

    def _sorts(self, rows: int) -> bool:
        """Say whether so many rows are sorted by expert."""
        return not self._fixed_rows and rows > self._streamed_rows

    @property
    def _streamed(self) -> Fp4Experts | Fp8Experts:
        parts = self.fp4 or self.fp8
        assert parts is not None
        return parts

    def _streamed_alike(
        self, x: Tensor, experts: Tensor, weights: Tensor, shared: Tensor
    ) -> Tensor:
        """Return the sum in blocks of one size, some rows at a time."""
        cut = [rows.split(self._fixed_rows) for rows in (x, experts, weights, shared)]
        parts = [
            streamed_moe(
                rows, chosen, shares, self._streamed, limit=self._limit, plus=plus, size=_FIXED_SIZE
            )
            for rows, chosen, shares, plus in zip(*cut, strict=True)
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _expanded(self) -> Fp8Experts:
        """Return the fp8 form, made anew where only fp4 is kept."""
        assert self.fp8 is not None
        if self._expands:
            assert self.fp4 is not None
            expanded(self.fp4, self.fp8)
        return self.fp8

    def _targets(self, expert: int) -> dict[str, WeightTarget]:
        fp8 = _fp8_targets(self.fp8, expert) if self.fp8 and not self._expands else {}
        if self.fp4 is None:
            return {**fp8}
        fp4 = _fp4_targets(self.fp4, expert)
        if not fp8:
            return {**fp4}
        return {leaf: TwinTarget(target, fp8[leaf]) for leaf, target in fp4.items()}


def expert_workspace(config: ModelConfig, shards: Shards, device: torch.device) -> Fp8Experts:
    """Return room for the routed experts of one layer as fp8."""
    return _fp8_experts(config, shards.share(config.n_routed_experts), device)


def _fp8_experts(config: ModelConfig, count: int, device: torch.device) -> Fp8Experts:
    def zeros(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        codes = torch.zeros((count, rows, columns), dtype=torch.float8_e4m3fn, device=device)
        blocks = (count, rows // _BLOCK, columns // _BLOCK)
        return codes, torch.zeros(blocks, dtype=torch.float32, device=device)

    width, inner = config.hidden_size, config.moe_intermediate_size
    return Fp8Experts(*zeros(2 * inner, width), *zeros(width, inner))


def _fp4_experts(config: ModelConfig, count: int, device: torch.device) -> Fp4Experts:
    def zeros(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        words = torch.zeros((count, rows, columns // 4), dtype=torch.int16, device=device)
        groups = (count, rows, columns // _GROUP)
        return words, torch.zeros(groups, dtype=torch.uint8, device=device)

    width, inner = config.hidden_size, config.moe_intermediate_size
    return Fp4Experts(*zeros(2 * inner, width), *zeros(width, inner))


def _fp8_targets(parts: Fp8Experts, expert: int) -> dict[str, Fp8Target]:
    codes, scales = parts.gate_up[expert].chunk(2), parts.gate_up_scales[expert].chunk(2)
    return {
        "w1": Fp8Target(codes[0], scales[0]),
        "w3": Fp8Target(codes[1], scales[1]),
        "w2": Fp8Target(parts.down[expert], parts.down_scales[expert]),
    }


def _fp4_targets(parts: Fp4Experts, expert: int) -> dict[str, Fp4Target]:
    words, scales = parts.gate_up[expert].chunk(2), parts.gate_up_scales[expert].chunk(2)
    return {
        "w1": Fp4Target(words[0], scales[0]),
        "w3": Fp4Target(words[1], scales[1]),
        "w2": Fp4Target(parts.down[expert], parts.down_scales[expert]),
    }
