"""Where weights of a file go when they stay quantised: views of storage that a kernel reads.

A target stands for one named weight of dense shape [out, in], rows of a stack. Whatever a file
holds is put into its storage, exactly where the storage can express it.
"""

import math
from typing import Literal, Protocol

import torch
from torch import Tensor

from jit_kernels.checks import ShapeError
from jit_kernels.expert_weights import expand_fp4, pack_fp4
from layers.weights.quant import quantise_fp4, quantise_fp8

__all__ = ["Fp4Target", "Fp8Target", "StoredForm", "TwinTarget", "WeightTarget"]

StoredForm = Literal["plain", "fp8", "fp4"]

# Codes of this spread fill e4m3 well, and a normal number is never 448 / 52 times its spread.
_FP8_SPREAD = 26.0
# Mean square of the sixteen e2m1 numbers.
_FP4_SQUARE = 8.5625
_E8M0_BIAS = 127


class WeightTarget(Protocol):
    """Storage of one named weight. Tensors handed over may lie on any device."""

    @property
    def shape(self) -> tuple[int, int]:
        """Return the dense shape, [out, in]."""
        ...

    @property
    def device(self) -> torch.device:
        """Return where the storage is."""
        ...

    def why_not(self, form: StoredForm) -> str | None:
        """Return why a weight that a file holds in this form cannot go here, None if it can."""
        ...

    def put_plain(self, weight: Tensor) -> None:
        """Quantise and store `weight` [out, in], any floating dtype, finite."""
        ...

    def put_fp8(self, codes: Tensor, scales: Tensor) -> None:
        """Store an fp8 block weight.

        codes   [out, in] float8_e4m3fn
        scales  [ceil(out/128), ceil(in/128)] float8_e8m0fnu or float32
        """
        ...

    def put_fp4(self, packed: Tensor, scales: Tensor) -> int:
        """Store an fp4 weight; return how many of its numbers were rounded.

        packed  [out, in/2] int8 or uint8, the even column in the low nibble
        scales  [out, in/32] float8_e8m0fnu or float32
        Raises ShapeError when a scale is no power of two up to 2.
        """
        ...

    def fill_random(self, generator: torch.Generator, gain: float) -> None:
        """Store random codes of variance `gain^2 / in`, made on the device of the storage."""
        ...


class Fp8Target:
    """Storage as e4m3 codes and a float32 scale for each 128 x 128 block."""

    def __init__(self, codes: Tensor, scales: Tensor) -> None:
        """Take the storage.

        codes   [out, in] float8_e4m3fn, contiguous; both sizes multiples of 128
        scales  [out/128, in/128] float32, contiguous
        """
        self.codes, self.scales = codes, scales

    @property
    def shape(self) -> tuple[int, int]:
        """Return the dense shape, [out, in]."""
        rows, columns = self.codes.shape
        return rows, columns

    @property
    def device(self) -> torch.device:
        """Return where the storage is."""
        return self.codes.device

    def why_not(self, form: StoredForm) -> str | None:
        """Return None: every form fits."""
        del form

    def put_plain(self, weight: Tensor) -> None:
        """Quantise and store."""
        self.put_fp8(*quantise_fp8(weight.to(self.device)))

    def put_fp8(self, codes: Tensor, scales: Tensor) -> None:
        """Store as it is."""
        self.codes.copy_(codes)
        self.scales.copy_(scales.to(torch.float32))

    def put_fp4(self, packed: Tensor, scales: Tensor) -> int:
        """Expand, exactly unless scales within a block differ by more than 2^14."""
        words, exponents = _packed(packed, scales, self.device)
        return int(self.expand(words, exponents))

    def expand(self, words: Tensor, scales: Tensor) -> Tensor:
        """Take the numbers of a packed fp4 weight; return how many were rounded, [1] int32.

        words   [out, in/4] int16 and scales [out, in/32] uint8, from `pack_fp4`
        """
        return expand_fp4(words[None], scales[None], self.codes[None], self.scales[None])

    def fill_random(self, generator: torch.Generator, gain: float) -> None:
        """Store normal numbers, all blocks with one scale."""
        spread = gain / math.sqrt(self.shape[1])
        exponent = math.floor(math.log2(spread / _FP8_SPREAD))
        numbers = torch.empty(self.shape, dtype=torch.float32, device=self.device)
        self.codes.copy_(numbers.normal_(0.0, math.ldexp(spread, -exponent), generator=generator))
        self.scales.fill_(math.ldexp(1.0, exponent))


class Fp4Target:
    """Storage as `pack_fp4` arranges e2m1 codes, and e8m0 scales for each 32 inputs."""

    def __init__(self, words: Tensor, scales: Tensor) -> None:
        """Take the storage.

        words   [out, in/4] int16, contiguous
        scales  [out, in/32] uint8, contiguous
        """
        self.words, self.scales = words, scales

    @property
    def shape(self) -> tuple[int, int]:
        """Return the dense shape, [out, in]."""
        rows, columns = self.words.shape
        return rows, 4 * columns

    @property
    def device(self) -> torch.device:
        """Return where the storage is."""
        return self.words.device

    def why_not(self, form: StoredForm) -> str | None:
        """Refuse fp8, most of whose numbers would be lost."""
        return "would lose most of its precision as fp4 experts" if form == "fp8" else None

    def put_plain(self, weight: Tensor) -> None:
        """Quantise and store."""
        self.put_fp4(*quantise_fp4(weight.to(self.device)))

    def put_fp8(self, codes: Tensor, scales: Tensor) -> None:
        """Raise ShapeError; see `why_not`."""
        raise ShapeError(f"an fp8 weight {self.why_not('fp8')}")

    def put_fp4(self, packed: Tensor, scales: Tensor) -> int:
        """Rearrange and store; nothing is rounded."""
        words, exponents = _packed(packed, scales, self.device)
        self.words.copy_(words)
        self.scales.copy_(exponents)
        return 0

    def fill_random(self, generator: torch.Generator, gain: float) -> None:
        """Store all codes alike often; each group's scale is one of two neighbours."""
        square = gain * gain / (self.shape[1] * _FP4_SQUARE)
        exponent = math.floor(math.log2(square) / 2)
        share = (square / math.ldexp(1.0, 2 * exponent) - 1) / 3
        self.words.random_(-(1 << 15), 1 << 15, generator=generator)
        self.scales.bernoulli_(share, generator=generator).add_(exponent + _E8M0_BIAS)


class TwinTarget:
    """One weight kept twice: as fp4 codes, and the same numbers as fp8."""

    def __init__(self, fp4: Fp4Target, fp8: Fp8Target) -> None:
        """Take both storages, of one shape."""
        self.fp4, self.fp8 = fp4, fp8

    @property
    def shape(self) -> tuple[int, int]:
        """Return the dense shape, [out, in]."""
        return self.fp4.shape

    @property
    def device(self) -> torch.device:
        """Return where the storages are."""
        return self.fp4.device

    def why_not(self, form: StoredForm) -> str | None:
        """Refuse what the fp4 storage refuses."""
        return self.fp4.why_not(form)

    def put_plain(self, weight: Tensor) -> None:
        """Quantise to fp4 and store both."""
        self.fp4.put_plain(weight)
        self._expand()

    def put_fp8(self, codes: Tensor, scales: Tensor) -> None:
        """Raise ShapeError; see `why_not`."""
        self.fp4.put_fp8(codes, scales)

    def put_fp4(self, packed: Tensor, scales: Tensor) -> int:
        """Store both; fp8 rounds where scales within a block differ by more than 2^14."""
        self.fp4.put_fp4(packed, scales)
        return int(self._expand())

    def fill_random(self, generator: torch.Generator, gain: float) -> None:
        """Store random fp4 codes, and the same numbers as fp8."""
        self.fp4.fill_random(generator, gain)
        self._expand()

    def _expand(self) -> Tensor:
        return self.fp8.expand(self.fp4.words, self.fp4.scales)


def _packed(packed: Tensor, scales: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the words and uint8 scales of a file's fp4 weight, on `device`."""
    if scales.dtype == torch.float32:
        mantissa, exponent = torch.frexp(scales)
        if not bool((mantissa == 0.5).all()):
            raise ShapeError("an fp4 weight has a scale that is no power of two")
        scales = (exponent + (_E8M0_BIAS - 1)).to(torch.uint8)
    return pack_fp4(packed.to(device), scales.to(device))
