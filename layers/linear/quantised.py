"""Linear layers over weights as files hold them: fp8 in blocks, and bfloat16.

As in `layers.linear.plain`, several named weights are stacked into one product. Where a layer is
`invariant`, a row's bits depend on its own numbers alone, not on how many rows there are.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor

from jit_kernels.bf16_linear import bf16_linear
from jit_kernels.checks import ShapeError
from jit_kernels.fp8_linear import (
    BLOCK,
    fp8_linear,
    fp8_linear_grouped,
    fp8_linear_of,
    rounds_rows,
)
from jit_kernels.quant_fp8 import norm_quant, quantise_rows
from jit_kernels.vendor_calls import VendorCalls, vendor_calls
from layers.weights.weight_target import Fp8Target

__all__ = ["Bf16Linear", "Fp8GroupedLinear", "Fp8Linear", "Fp8Rows", "Product"]


class Product(Protocol):
    """What a network multiplies by. Libraries compile kernels for its sizes and numbers of rows."""

    @property
    def sizes(self) -> tuple[int | str, ...]:
        """What products that share all kernels have in common."""
        ...

    def rehearse(self, rows: int) -> None:
        """Multiply so many rows of zeros, so that what they need is compiled."""
        ...

    def calls(self, rows: Iterable[int]) -> list[VendorCalls]:
        """Return what products of these numbers of rows call a vendor's library for."""
        ...


class Fp8Rows:
    """Rows that one or more fp8 products take.

    A product of few rows rounds them itself. Others share codes, which are made when the object is,
    and so on the stream of that moment, whichever streams the products run on.
    """

    def __init__(
        self,
        x: Tensor,
        norm: Tensor | None = None,
        *,
        eps: float = 0.0,
        invariant: bool = False,
    ) -> None:
        """Take rows [T, width], float32 or bfloat16.

        norm       [width] float32, the weight of a norm that comes first; None: there is no norm
        eps        of the norm
        invariant  products of these rows are
        """
        self.x, self.norm, self.eps = x, norm, eps
        self.rounded: tuple[Tensor, Tensor] | None = None
        if invariant or not rounds_rows(x, norm):
            self.rounded = quantise_rows(x) if norm is None else norm_quant(x, norm, eps=eps)


class Fp8Linear:
    """One product of fp8 rows whose output channels belong to one or more named weights.

    weight  [sum of rows, width] float8_e4m3fn   the parts one after another
    scales  [sum of rows / 128, width / 128] float32
    """

    def __init__(
        self,
        width: int,
        parts: Mapping[str, int],
        *,
        device: torch.device,
        invariant: bool = False,
    ) -> None:
        """Allocate the weight of `parts`: name -> output rows, in order.

        Raises ShapeError unless `width` and the rows of every part are multiples of 128.
        """
        self._parts, self._invariant = dict(parts), invariant
        self.weight, self.scales = _blocks(sum(self._parts.values()), width, device)
        for name, rows in self._parts.items():
            _check_multiple(name, rows)

    @property
    def sizes(self) -> tuple[int | str, ...]:
        """Return the product's kind and sizes; see `Product`."""
        return ("fp8", *self.weight.shape)

    def rehearse(self, rows: int) -> None:
        """Multiply rows of zeros; see `Product`."""
        self(*_zero_codes((rows, self.weight.shape[1]), self.weight.device))

    def calls(self, rows: Iterable[int]) -> list[VendorCalls]:
        """Return a vendor's calls; see `Product`."""
        return vendor_calls(_op("fp8_linear", self._invariant), self.weight.shape, rows)

    def __call__(
        self, codes: Tensor, scales: Tensor, *, out_dtype: torch.dtype = torch.bfloat16
    ) -> Tensor:
        """Return the product with rows from `quantise_rows`: [T, width] -> [T, sum of rows].

        codes   [T, width] float8_e4m3fn
        scales  [T, width / 128] float32
        """
        return fp8_linear(
            codes,
            scales,
            self.weight,
            self.scales,
            out_dtype=out_dtype,
            invariant=self._invariant,
        )

    def of(self, rows: Fp8Rows, *, settled: bool = False) -> Tensor:
        """Return the product with rows that need not be rounded yet, [T, sum of rows] bfloat16.

        settled  on the device, the launch before does not make them
        """
        if rows.rounded is not None:
            return self(*rows.rounded)
        return fp8_linear_of(
            rows.x,
            self.weight,
            self.scales,
            norm=rows.norm,
            eps=rows.eps,
            invariant=self._invariant,
            settled=settled,
        )

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Fp8Target]]:
        """Yield `prefix + name + ".weight"` and its rows of the stacked weight."""
        first = 0
        for name, rows in self._parts.items():
            mine = slice(first, first + rows)
            blocks = slice(first // BLOCK, (first + rows) // BLOCK)
            yield f"{prefix}{name}.weight", Fp8Target(self.weight[mine], self.scales[blocks])
            first += rows


class Fp8GroupedLinear:
    """One fp8 product per group of input channels.

    weight  [groups, rows, width] float8_e4m3fn
    scales  [groups, rows / 128, width / 128] float32
    """

    def __init__(
        self,
        groups: int,
        rows: int,
        width: int,
        *,
        name: str,
        device: torch.device,
        invariant: bool = False,
    ) -> None:
        """Allocate the weight, called `name` in files, stored there as [groups * rows, width].

        Raises ShapeError unless `rows` and `width` are multiples of 128.
        """
        self._name, self._invariant = name, invariant
        _check_multiple(name, rows)
        weight, scales = _blocks(groups * rows, width, device)
        self.weight = weight.unflatten(0, (groups, rows))
        self.scales = scales.unflatten(0, (groups, rows // BLOCK))

    @property
    def sizes(self) -> tuple[int | str, ...]:
        """Return the product's kind and sizes; see `Product`."""
        return ("fp8 groups", *self.weight.shape)

    def rehearse(self, rows: int) -> None:
        """Multiply rows of zeros; see `Product`."""
        groups, _, width = self.weight.shape
        self(*_zero_codes((rows, groups, width), self.weight.device))

    def calls(self, rows: Iterable[int]) -> list[VendorCalls]:
        """Return a vendor's calls; see `Product`."""
        return vendor_calls(_op("fp8_linear_grouped", self._invariant), self.weight.shape, rows)

    def __call__(self, codes: Tensor, scales: Tensor) -> Tensor:
        """Return the groups' products, [T, groups, rows] bfloat16.

        codes   [T, groups, width] float8_e4m3fn
        scales  [T, groups, width / 128] float32
        """
        return fp8_linear_grouped(
            codes, scales, self.weight, self.scales, invariant=self._invariant
        )

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Fp8Target]]:
        """Yield the weight under its name in files."""
        target = Fp8Target(self.weight.flatten(0, 1), self.scales.flatten(0, 1))
        yield f"{prefix}{self._name}.weight", target


class Bf16Linear:
    """One product of bfloat16 rows whose output channels belong to one or more named weights.

    weight  [sum of rows, width] bfloat16   the parts one after another
    """

    def __init__(
        self,
        width: int,
        parts: Mapping[str, int],
        *,
        device: torch.device,
        invariant: bool = False,
    ) -> None:
        """Allocate the weight of `parts`: name -> output rows, in order."""
        self._parts, self._invariant = dict(parts), invariant
        shape = (sum(self._parts.values()), width)
        self.weight = torch.zeros(shape, dtype=torch.bfloat16, device=device)

    @property
    def sizes(self) -> tuple[int | str, ...]:
        """Return the product's kind and sizes; see `Product`."""
        return ("bf16", *self.weight.shape)

    def rehearse(self, rows: int) -> None:
        """Multiply rows of zeros; see `Product`."""
        self(self.weight.new_zeros((rows, self.weight.shape[1])))

    def calls(self, rows: Iterable[int]) -> list[VendorCalls]:
        """Return a vendor's calls; see `Product`."""
        return vendor_calls(_op("bf16_linear", self._invariant), self.weight.shape, rows)

    def __call__(self, x: Tensor, *, out_dtype: torch.dtype = torch.float32) -> Tensor:
        """Return `x @ weight.T`: [T, width] bfloat16 -> [T, sum of rows]."""
        return bf16_linear(x, self.weight, out_dtype=out_dtype, invariant=self._invariant)

    def named_weights(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        """Yield `prefix + name + ".weight"` and its rows of the stacked weight."""
        rows = self.weight.split(list(self._parts.values()))
        for name, view in zip(self._parts, rows, strict=True):
            yield f"{prefix}{name}.weight", view


def _op(name: str, invariant: bool) -> str:
    return f"{name}_invariant" if invariant else name


def _blocks(rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    _check_multiple("the input", width)
    codes = torch.zeros((rows, width), dtype=torch.float8_e4m3fn, device=device)
    shape = (-(-rows // BLOCK), width // BLOCK)
    return codes, torch.zeros(shape, dtype=torch.float32, device=device)


def _zero_codes(shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    codes = torch.zeros(shape, dtype=torch.float8_e4m3fn, device=device)
    return codes, torch.zeros((*shape[:-1], shape[-1] // BLOCK), device=device)


def _check_multiple(name: str, size: int) -> None:
    if not size or size % BLOCK:
        raise ShapeError(f"{name} has {size} channels, expected a multiple of {BLOCK}")
