"""The optimiser: Muon for matrices, AdamW for the rest, one step size for both.

Muon's updates are scaled to the spread that AdamW's have, so that both share a rate. Sources:
K. Jordan's Muon, and "Muon is scalable for LLM training" (Moonshot, 2025) for the factor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.train.storage import stored_as

_MUON_SPREAD = 0.2
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_STEPS = 5
_COMPRESSED_KEYS = "compressor.wkv.weight"


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """Constants of both halves; rates come with each step.

    weight_decay  of matrices, times the rate
    """

    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.01
    muon: bool = True


class Optimiser:
    """Moments of all parameters, and the step that changes them in place."""

    def __init__(
        self, parameters: Mapping[str, Tensor], settings: OptimiserSettings | None = None
    ) -> None:
        """Start without moments; `parameters` are leaves, with gradients when `step` is called."""
        self._settings = settings or OptimiserSettings()
        by_shape: dict[torch.Size, dict[str, Tensor]] = {}
        self._rest: dict[str, Tensor] = {}
        for name, tensor in parameters.items():
            muon = self._settings.muon and is_muon(name)
            (by_shape.setdefault(tensor.shape, {}) if muon else self._rest)[name] = tensor
        self._groups = list(by_shape.values())
        self._momenta = [torch.zeros_like(_stacked(group)) for group in self._groups]
        self._first = torch.zeros_like(_flat(self._rest))
        self._second = torch.zeros_like(self._first)
        self.steps = 0

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every parameter by its gradient."""
        self.steps += 1
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            self._step_matrices(group, momentum, rate)
        if self._rest:
            self._step_rest(rate)

    def tensors(self) -> dict[str, Tensor]:
        """Return the moments by name: `momentum.`, `first.` or `second.` and the parameter's."""
        return dict(self._named())

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], steps: int) -> None:
        """Take the moments that `tensors` returned after `steps` steps.

        Raises KeyError when one is missing.
        """
        for name, tensor in self._named():
            tensor.copy_(tensors[name])
        self.steps = steps

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for group, momentum in zip(self._groups, self._momenta, strict=True):
            for name, part in zip(group, momentum.unbind(), strict=True):
                yield f"momentum.{name}", part
        for kind, moments in (("first", self._first), ("second", self._second)):
            for name, part in zip(self._rest, self._split(moments), strict=True):
                yield f"{kind}.{name}", part

    def _split(self, flat: Tensor) -> list[Tensor]:
        """Return views of `flat` in the shapes of the parameters that are no matrices."""
        sizes = [tensor.numel() for tensor in self._rest.values()]
        parts = zip(flat.split(sizes), self._rest.values(), strict=True)
        return [part.view(tensor.shape) for part, tensor in parts]

    def _step_matrices(self, group: dict[str, Tensor], momentum: Tensor, rate: float) -> None:
        settings = self._settings
        grad = torch.stack([_gradient(tensor) for tensor in group.values()])
        momentum.lerp_(grad, 1.0 - settings.momentum)
        update = _orthogonal(grad.lerp_(momentum, settings.momentum))
        factor = _MUON_SPREAD * max(update.shape[-2:]) ** 0.5
        for tensor, part in zip(group.values(), update.unbind(), strict=True):
            tensor.mul_(1.0 - rate * settings.weight_decay).add_(part, alpha=-rate * factor)

    def _step_rest(self, rate: float) -> None:
        (fast, slow), steps = self._settings.betas, self.steps
        grad = _flat({name: _gradient(tensor) for name, tensor in self._rest.items()})
        self._first.lerp_(grad, 1.0 - fast)
        self._second.lerp_(grad.square(), 1.0 - slow)
        spread = (self._second / (1.0 - slow**steps)).sqrt_().add_(self._settings.eps)
        update = self._first / spread / (1.0 - fast**steps)
        for tensor, part in zip(self._rest.values(), self._split(update), strict=True):
            tensor.add_(part, alpha=-rate)


def is_muon(name: str) -> bool:
    """Say whether `name` is a matrix from channels to channels, for Muon."""
    return stored_as(name) == "fp8" or name.endswith(_COMPRESSED_KEYS)


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


def _stacked(group: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([tensor.detach() for tensor in group.values()])


def _flat(named: Mapping[str, Tensor]) -> Tensor:
    parts = [tensor.detach().flatten() for tensor in named.values()]
    return torch.cat(parts) if parts else torch.zeros(0)


def _orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices [n, r, c] near the closest ones with equal singular values, float32."""
    a, b, c = _NEWTON_SCHULZ
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-12)
    x = x.to(torch.bfloat16) if x.is_cuda else x
    for _ in range(_STEPS):
        square = torch.bmm(x, x.transpose(1, 2))
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    x = x.to(torch.float32)
    return x.transpose(1, 2) if tall else x
