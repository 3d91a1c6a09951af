"""How a network is stored and multiplied on a device: the kinds of layers that blocks are made of.

Wiring asks for layers by what they are for. Plain kinds are the reference: any device that torch
has, float32 or bfloat16. Quantised kinds keep weights as files hold them, on a Hopper GPU, and so
do bfloat16 kinds for networks whose files are bfloat16.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from jit_kernels.expert_weights import Fp8Experts
from layers.blocks.side_stream import SideStream
from layers.experts.contract import ExpertForm, ExpertSizes, RoutedExperts
from layers.experts.plain import PlainExperts
from layers.experts.quantised import QuantisedExperts, expert_workspace
from layers.linear.bf16 import Bf16Linear
from layers.linear.contract import GroupedLinear, Linear
from layers.linear.fp8 import Fp8GroupedLinear, Fp8Linear
from layers.linear.plain import PlainGroupedLinear, PlainLinear
from layers.parallel.shares import Size

__all__ = ["Bf16Kinds", "DecoderKinds", "Kinds", "PlainKinds", "QuantisedKinds"]


class Kinds(Protocol):
    """Makes layers. Parts of a product are name -> output rows.

    dtype   of activations
    side    where parts of a layer run beside others
    blocks  projections are quantised in blocks of 128, which ranks do not divide
    """

    blocks: bool
    device: torch.device
    dtype: torch.dtype
    side: SideStream

    def projection(self, width: Size, parts: Mapping[str, Size]) -> Linear:
        """Return a product that files may hold quantised."""
        ...

    def grouped(self, groups: Size, rows: int, width: int, *, name: str) -> GroupedLinear:
        """Return the same, one for each group of heads."""
        ...

    def exact(self, width: int, parts: Mapping[str, Size]) -> Linear:
        """Return a product of weights that stay unrounded, in float32: compressors, gates."""
        ...

    def head(self, width: int, parts: Mapping[str, Size]) -> Linear:
        """Return the product that makes logits, in float32."""
        ...

    def routed(self, sizes: ExpertSizes) -> RoutedExperts:
        """Return routed experts."""
        ...


class DecoderKinds(Protocol):
    """Makes layers of a decoder of plain or bfloat16 weights; see `Kinds`."""

    @property
    def device(self) -> torch.device:
        """Where they are."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """That of activations."""
        ...

    @property
    def stored(self) -> torch.dtype:
        """That of matrices."""
        ...

    @property
    def invariant(self) -> bool:
        """Whether a token's bits must not depend on how many tokens there are."""
        ...

    @property
    def side(self) -> SideStream:
        """Where parts of a layer run beside others."""
        ...

    def projection(self, width: Size, parts: Mapping[str, Size]) -> Linear:
        """Return a product, in float32."""
        ...

    def exact(self, width: int, parts: Mapping[str, Size]) -> Linear:
        """Return the product of a gate, in float32."""
        ...

    def head(
        self, width: int, parts: Mapping[str, Size], *, weight: Tensor | None = None
    ) -> Linear:
        """Return the product that makes logits, in float32.

        weight  that is there already, the embedding's
        """
        ...

    def routed(self, sizes: ExpertSizes, names: tuple[str, str, str]) -> PlainExperts:
        """Return routed experts; names of gate, up and down projections in files."""
        ...


class PlainKinds:
    """Plain numbers; gates and compressors are float32 whatever the dtype.

    stored  dtype of projections and of the head
    """

    blocks = False
    invariant = True

    def __init__(
        self, device: torch.device, dtype: torch.dtype, *, stored: torch.dtype | None = None
    ) -> None:
        """Take the dtype of matrices and activations, float32 or bfloat16.

        stored  dtype of matrices where that is another
        """
        self.device, self.dtype, self.stored = device, dtype, stored or dtype
        self.side = SideStream(device)

    def projection(self, width: Size, parts: Mapping[str, Size]) -> PlainLinear:
        """See `Kinds`."""
        return PlainLinear(
            width, parts, dtype=self.dtype, device=self.device, weight_dtype=self.stored
        )

    def grouped(self, groups: Size, rows: int, width: int, *, name: str) -> PlainGroupedLinear:
        """See `Kinds`."""
        return PlainGroupedLinear(
            groups, rows, width, name=name, dtype=self.dtype, device=self.device
        )

    def exact(self, width: int, parts: Mapping[str, Size]) -> PlainLinear:
        """See `Kinds`."""
        return PlainLinear(
            width, parts, dtype=self.dtype, device=self.device, weight_dtype=torch.float32
        )

    def head(
        self, width: int, parts: Mapping[str, Size], *, weight: Tensor | None = None
    ) -> PlainLinear:
        """See `Kinds` and `DecoderKinds`."""
        return PlainLinear(
            width,
            parts,
            dtype=self.dtype,
            device=self.device,
            weight_dtype=self.stored,
            weight=weight,
        )

    def routed(
        self, sizes: ExpertSizes, names: tuple[str, str, str] = ("w1", "w3", "w2")
    ) -> PlainExperts:
        """See `Kinds` and `DecoderKinds`."""
        return PlainExperts(sizes, dtype=self.stored, device=self.device, names=names)


class Bf16Kinds:
    """bfloat16 weights and activations, float32 sums; a `DecoderKinds`."""

    dtype = stored = torch.bfloat16

    def __init__(self, device: torch.device, *, deterministic: bool = False) -> None:
        """Take where; deterministic: a token's bits do not depend on how many tokens there are."""
        self.device, self.invariant = device, deterministic
        self.side = SideStream(device)

    def projection(self, width: Size, parts: Mapping[str, Size]) -> Bf16Linear:
        """See `DecoderKinds`."""
        return Bf16Linear(width, parts, device=self.device, invariant=self.invariant)

    def exact(self, width: int, parts: Mapping[str, Size]) -> Bf16Linear:
        """See `DecoderKinds`."""
        return self.projection(width, parts)

    def head(
        self, width: int, parts: Mapping[str, Size], *, weight: Tensor | None = None
    ) -> Bf16Linear:
        """See `DecoderKinds`."""
        return Bf16Linear(width, parts, device=self.device, invariant=self.invariant, weight=weight)

    def routed(self, sizes: ExpertSizes, names: tuple[str, str, str]) -> PlainExperts:
        """See `DecoderKinds`."""
        return PlainExperts(
            sizes,
            dtype=self.dtype,
            device=self.device,
            names=names,
            invariant=self.invariant,
        )


class QuantisedKinds:
    """fp8 projections, bfloat16 gates, compressors and head; experts as fp4, fp8 or both."""

    blocks, dtype = True, torch.bfloat16

    def __init__(
        self, device: torch.device, *, experts: ExpertForm, deterministic: bool = False
    ) -> None:
        """Take how routed experts are kept.

        deterministic  a token's bits do not depend on how many tokens there are
        """
        self.device, self._deterministic = device, deterministic
        self.side = SideStream(device)
        # A deterministic network keeps of both forms the one that it multiplies.
        self.form: ExpertForm = "fp4" if deterministic and experts == "both" else experts
        self._workspace: Fp8Experts | None = None

    def projection(self, width: Size, parts: Mapping[str, Size]) -> Fp8Linear:
        """See `Kinds`."""
        return Fp8Linear(width, parts, device=self.device, invariant=self._deterministic)

    def grouped(self, groups: Size, rows: int, width: int, *, name: str) -> Fp8GroupedLinear:
        """See `Kinds`."""
        return Fp8GroupedLinear(
            groups, rows, width, name=name, device=self.device, invariant=self._deterministic
        )

    def exact(self, width: int, parts: Mapping[str, Size]) -> Bf16Linear:
        """See `Kinds`."""
        return Bf16Linear(width, parts, device=self.device, invariant=self._deterministic)

    def head(self, width: int, parts: Mapping[str, Size]) -> Bf16Linear:
        """See `Kinds`."""
        return self.exact(width, parts)

    def routed(self, sizes: ExpertSizes) -> QuantisedExperts:
        """See `Kinds`; layers that keep fp4 alone share room for one of them as fp8."""
        if self.form == "fp4" and not self._deterministic and self._workspace is None:
            self._workspace = expert_workspace(sizes, self.device)
        return QuantisedExperts(
            sizes,
            device=self.device,
            form=self.form,
            workspace=self._workspace,
            deterministic=self._deterministic,
        )
