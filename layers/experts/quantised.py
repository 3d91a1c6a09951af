"""Routed experts over quantised weights: fp4, fp8 or both.

Few rows stream each chosen expert's weights once and keep activations in bfloat16; many rows are
sorted by expert and multiplied as fp8. Where bits must not depend on how many rows there are, all
are streamed, in blocks of one size.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from jit_kernels.expert_weights import Fp4Experts, Fp8Experts, expanded
from jit_kernels.grouped_moe import grouped_moe
from jit_kernels.quant_fp8 import quantise_rows
from jit_kernels.streamed_moe import streamed_moe
from layers.experts.contract import ExpertForm, ExpertSizes
from layers.linear.contract import Named, Rows
from layers.weights.part import part_of
from layers.weights.weight_target import Fp4Target, Fp8Target, TwinTarget, WeightTarget

__all__ = ["QuantisedExperts", "expert_workspace"]

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


class QuantisedExperts:
    """A `RoutedExperts`; results are bfloat16.

    fp4  the routed experts, unless they are kept as fp8 alone
    fp8  the same; where they are kept as fp4 alone, the workspace
    """

    def __init__(
        self,
        sizes: ExpertSizes,
        *,
        device: torch.device,
        form: ExpertForm,
        workspace: Fp8Experts | None = None,
        deterministic: bool = False,
    ) -> None:
        """Allocate the weights.

        workspace      from `expert_workspace`, shared by all layers: many rows of a layer that
                       keeps fp4 alone expand its weights into it, unless `deterministic`
        deterministic  a row's bits depend on its own numbers alone; fp4 is multiplied, if it is
                       there, however many rows there are
        Raises ValueError when form is "fp4" and a workspace is missing, and ShapeError when
        a width is no multiple of 128.
        """
        if form == "fp4" and workspace is None and not deterministic:
            raise ValueError("experts kept as fp4 alone need a workspace")
        count, width, inner = sizes.held
        self._sizes, self._limit = sizes, sizes.limit
        chosen = 0 if deterministic else sizes.chosen
        self.fp4 = Fp4Experts.zeros(count, width, inner, device) if form != "fp8" else None
        self.fp8 = workspace
        if form != "fp4":
            self.fp8 = Fp8Experts.zeros(
                count, width, inner, device, chosen=chosen, streamed=_STREAMED_ROWS[form]
            )
        self._expands, self._streamed_rows = form == "fp4", _STREAMED_ROWS[form]
        self._fixed_rows = 0
        if deterministic:
            each = sizes.chosen * (4 * width + 2 * inner)
            self._fixed_rows = max(1, _FIXED_BYTES // each)

    def __call__(
        self,
        x: Tensor,
        rows: Rows,
        experts: Tensor,
        weights: Tensor,
        plus: Callable[[], Tensor],
    ) -> Tensor:
        """Return the sum, [T, d] bfloat16; see `RoutedExperts`."""
        if self._fixed_rows:
            return self._streamed_alike(x, experts, weights, plus())
        if x.shape[0] > self._streamed_rows:
            shared = plus()
            codes, scales = rows.rounded or quantise_rows(x)
            parts, limit = self._expanded(), self._limit
            return grouped_moe(codes, scales, experts, weights, parts, limit=limit, plus=shared)
        # The shared expert's last product may end beside the first of those chosen.
        return streamed_moe(x, experts, weights, self._streamed, limit=self._limit, plus=plus)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        for expert in range(self._streamed.sizes[0]):
            name = f"{prefix}experts.{self._sizes.experts.first + expert}."
            for leaf, target in self._targets(expert).items():
                both = (self._sizes.inner, self._sizes.width)
                rows, columns = both[::-1] if leaf == "w2" else both
                yield f"{name}{leaf}.weight", part_of(target, rows, columns)

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


def expert_workspace(sizes: ExpertSizes, device: torch.device) -> Fp8Experts:
    """Return room for the routed experts of one layer as fp8."""
    return Fp8Experts.zeros(
        *sizes.held, device, chosen=sizes.chosen, streamed=_STREAMED_ROWS["fp4"]
    )


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
