"""An attention module over latent records, computed in five ways, in plain torch."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["SHAPES", "Module", "Shape", "Variants", "faults", "variants"]


@dataclass(frozen=True)
class Shape:
    """Widths of an attention module; `query` is the width that queries are made of."""

    hidden: int
    heads: int
    query: int
    plain: int = 128
    turned: int = 64
    value: int = 128
    latent: int = 512

    def costs(self, variant: str, itemsize: int) -> tuple[int, int, int]:
        """Return bytes cached a token, FLOP a cached token and query, FLOP a query besides."""
        whole = self.plain + self.turned + self.value
        expand = 2 * self.heads * self.latent * (self.plain + self.value)
        pair, record = 2 * self.heads * whole, (self.latent + self.turned) * itemsize
        if variant == "CD":
            return self.heads * whole * itemsize, pair, 0
        if variant == "CC":
            return record, pair + expand, 0
        absorbed = 2 * self.heads * (2 * self.latent + self.turned)
        return record, absorbed, 0 if variant == "AM_CC_ME" else expand


SHAPES = {"v2": Shape(5120, 128, 1536), "v2_lite": Shape(2048, 16, 2048)}


class Module:
    """One module's weights, in each form that a variant needs. Names are those of `Shape`."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: str) -> None:
        """Draw the weights."""
        s, self.shape = shape, shape

        def weight(*sizes: int) -> Tensor:
            spread = sizes[-1] ** -0.5
            return (torch.randn(sizes, dtype=torch.float32) * spread).to(device, dtype)

        self.down = weight(s.query, s.hidden)
        self.up = weight(s.heads, s.plain + s.turned, s.query)
        self.keys, self.values = (weight(s.heads, n, s.latent) for n in (s.plain, s.value))
        self.out = weight(s.hidden, s.heads * s.value)
        self.both = torch.cat((self.keys, self.values), 1).flatten(0, 1)
        # [H, query, latent] and [H latent, hidden].
        self.up_keys = self.up[:, : s.plain].transpose(1, 2) @ self.keys
        outs = self.out.view(s.hidden, s.heads, s.value).permute(1, 2, 0)
        self.values_out = (self.values.transpose(1, 2) @ outs).flatten(0, 1)

    def query(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the plain and the turned channels of queries, [B, H, ...]."""
        q = torch.einsum("bq,hnq->bhn", x @ self.down.T, self.up)
        return q[..., : self.shape.plain], q[..., self.shape.plain :]

    def expanded(self, latents: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, [B, H, S, ...]."""
        s = self.shape
        made = (latents @ self.both.T).unflatten(2, (s.heads, -1)).transpose(1, 2)
        keys, values = made.split([s.plain, s.value], 3)
        shared = turned.unsqueeze(1).expand(-1, s.heads, -1, -1)
        return torch.cat((keys, shared), 3), values


class Variants:
    """The five, on rows of `keys` cached positions."""

    def __init__(self, module: Module, x: Tensor, latents: Tensor, turned: Tensor) -> None:
        """Take hidden states [B, hidden] and what is cached, [B, S, latent] and [B, S, turned]."""
        self._m, self._x, self._latents, self._turned = module, x, latents, turned
        self._scale = (module.shape.plain + module.shape.turned) ** -0.5
        self._cached: tuple[Tensor, Tensor] | None = None

    def cache_expanded(self) -> None:
        """Make what CD has cached."""
        self._cached = self._m.expanded(self._latents, self._turned)

    def drop_expanded(self) -> None:
        """Free it."""
        self._cached = None

    def cd(self) -> Tensor:
        """Attend to cached keys and values."""
        assert self._cached is not None
        return self._dense(*self._cached)

    def cc(self) -> Tensor:
        """Expand, then attend."""
        return self._dense(*self._m.expanded(self._latents, self._turned))

    def a_cc(self) -> Tensor:
        """Attend to joined records."""
        plain, turned = self._m.query(self._x)
        q = torch.cat((torch.einsum("bhn,hnc->bhc", plain, self._m.keys), turned), 2)
        records = torch.cat((self._latents, self._turned), 2)
        return self._values(q @ records.transpose(1, 2))

    def a_cc_me(self) -> Tensor:
        """Attend by two products."""
        plain, turned = self._m.query(self._x)
        q = torch.einsum("bhn,hnc->bhc", plain, self._m.keys)
        return self._values(self._two_products(q, turned))

    def am_cc_me(self) -> Tensor:
        """Attend with weights that were multiplied before."""
        m = self._m
        x = self._x @ m.down.T
        turned = torch.einsum("bq,hnq->bhn", x, m.up[:, m.shape.plain :])
        q = torch.einsum("bq,hqc->bhc", x, m.up_keys)
        read = self._softmax(self._two_products(q, turned)) @ self._latents
        return read.flatten(1) @ m.values_out

    def _two_products(self, q: Tensor, turned: Tensor) -> Tensor:
        return q @ self._latents.transpose(1, 2) + turned @ self._turned.transpose(1, 2)

    def _softmax(self, logits: Tensor) -> Tensor:
        return (logits.float() * self._scale).softmax(-1).to(logits.dtype)

    def _values(self, logits: Tensor) -> Tensor:
        read = self._softmax(logits) @ self._latents
        return torch.einsum("bhc,hvc->bhv", read, self._m.values).flatten(1) @ self._m.out.T

    def _dense(self, keys: Tensor, values: Tensor) -> Tensor:
        q = torch.cat(self._m.query(self._x), 2).unsqueeze(2)
        read = self._softmax(q @ keys.transpose(2, 3)) @ values
        return read.flatten(1) @ self._m.out.T

    def all(self) -> dict[str, Callable[[], Tensor]]:
        """Return the variants by name."""
        return {
            "CD": self.cd,
            "CC": self.cc,
            "A_CC": self.a_cc,
            "A_CC_ME": self.a_cc_me,
            "AM_CC_ME": self.am_cc_me,
        }


def variants(module: Module, batch: int, keys: int) -> Variants:
    """Return the variants on random rows."""
    s, like = module.shape, module.down
    x, latents, turned = (
        torch.randn(size, dtype=torch.float32).to(like.device, like.dtype)
        for size in ((batch, s.hidden), (batch, keys, s.latent), (batch, keys, s.turned))
    )
    return Variants(module, x, latents, turned)


def faults(module: Module, batch: int, keys: int) -> dict[str, tuple[float, float]]:
    """Return how far each variant is from CD: by norms, and at the worst channel."""
    made = variants(module, batch, keys)
    made.cache_expanded()
    with torch.inference_mode():
        want = made.cd().float()
        away = {name: run().float() - want for name, run in made.all().items()}
    worst = want.abs().max()
    return {
        name: (float(d.norm() / want.norm()), float(d.abs().max() / worst))
        for name, d in away.items()
    }
