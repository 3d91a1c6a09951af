"""gpt-oss's mixture of experts: a router with a bias, experts with biases and a steeper gate."""

import torch
from torch import Tensor

from jit_kernels.biased_moe import biased_moe
from jit_kernels.route_softmax import route_softmax
from layers.kinds import PlainKinds
from layers.linear.biased import BiasedLinear
from layers.linear.contract import Named
from layers.models.gpt_oss.config import ExpertFields
from layers.parallel.ranks import Ranks
from layers.weights.stacked import StackedWeight

__all__ = ["Mixture"]


class Mixture:
    """Routed experts, none of them shared by all tokens; a `FeedForward`.

    gate_up  [experts, 2 * inner, d]   gates, then what they gate
    down     [experts, d, inner]
    """

    def __init__(self, width: int, fields: ExpertFields, kinds: PlainKinds, ranks: Ranks) -> None:
        """Allocate the weights."""
        self._fields, self._ranks, self._width = fields, ranks, width
        router = {"router": fields.count}
        self._router = BiasedLinear(kinds.exact(width, router), router, kinds.device)
        self._inner = ranks.shares.inner(fields.inner, blocks=False)
        inner, count = self._inner.count, ranks.shares.experts(fields.count).count
        self._dtype = kinds.stored

        def weight(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((count, *shape), dtype=dtype, device=kinds.device)

        self._gate_up = weight(2 * inner, width, dtype=kinds.stored)
        self._down = weight(width, inner, dtype=kinds.stored)
        self._biases = tuple(weight(size, dtype=torch.float32) for size in (2 * inner, width))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's result; see `FeedForward`."""
        x = x.to(self._dtype)
        logits = self._router(self._router.rows(x))
        experts, weights = route_softmax(logits, top_k=self._fields.chosen, normalised=True)
        into, out = self._biases
        # The sum over ranks has the second bias once.
        own = out if self._ranks.shares.rank == 0 else torch.zeros_like(out)
        routed = biased_moe(
            x,
            experts,
            weights,
            gate_up=self._gate_up,
            down=self._down,
            limit=self._fields.limit,
            biases=(into, own),
            alpha=self._fields.alpha,
        )
        return self._ranks.all_reduce(routed)

    def named_weights(self, prefix: str) -> Named:
        """Yield the weights under their names in files."""
        yield from self._router.named_weights(prefix)
        packed, inner, width = self._fields.packed, self._inner, self._width
        form = "_blocks" if packed else ""
        for name, weight, bias, rows, columns in (
            ("gate_up_proj", self._gate_up, self._biases[0], inner, width),
            ("down_proj", self._down, self._biases[1], width, inner),
        ):
            gated = name == "gate_up_proj"
            stacked = StackedWeight(weight, rows, columns, gated=gated, packed=packed)
            yield f"{prefix}experts.{name}{form}", stacked
            yield f"{prefix}experts.{name}_bias", StackedWeight(bias, rows, None, gated=gated)
