"""gpt-oss's mixture of experts: a router with a bias, experts with biases and a steeper gate."""

import torch
from torch import Tensor

from jit_kernels.biased_moe import biased_moe
from jit_kernels.route_softmax import route_softmax
from layers.kinds import DecoderKinds
from layers.linear.biased import BiasedLinear
from layers.linear.contract import Named
from layers.linear.summed import over_ranks
from layers.models.gpt_oss.config import ExpertFields
from layers.parallel.ranks import Ranks
from layers.weights.stacked import StackedWeight

__all__ = ["Mixture"]


class Mixture:
    """Routed experts, none of them shared by all tokens; a `FeedForward`.

    gate_up  [experts, 2 * inner, d]   gates, then what they gate
    down     [experts, d, inner]
    """

    def __init__(self, width: int, fields: ExpertFields, kinds: DecoderKinds, ranks: Ranks) -> None:
        """Allocate the weights."""
        self._fields, self._ranks, self._width = fields, ranks, width
        router = {"router": fields.count}
        self._router = BiasedLinear(kinds.exact(width, router), router, kinds.device)
        self._inner = ranks.shares.inner(fields.inner, blocks=False)
        inner, count = self._inner.count, ranks.shares.experts(fields.count).count
        self._dtype, self._sent, self._invariant = kinds.stored, kinds.dtype, kinds.invariant

        def weight(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros((count, *shape), dtype=dtype, device=kinds.device)

        self._gate_up = weight(2 * inner, width, dtype=kinds.stored)
        self._down = weight(width, inner, dtype=kinds.stored)
        into, out = (weight(size, dtype=torch.float32) for size in (2 * inner, width))
        self._biases = into, out
        # The sum over ranks has the second bias once.
        self._added = into, torch.zeros_like(out) if ranks.shares.rank else out

    def __call__(self, x: Tensor) -> Tensor:
        """Return the block's result; see `FeedForward`."""
        x = x.to(self._dtype)
        logits = self._router(self._router.rows(x))
        experts, weights = route_softmax(logits, top_k=self._fields.chosen, normalised=True)
        routed = biased_moe(
            x,
            experts,
            weights,
            gate_up=self._gate_up,
            down=self._down,
            biases=self._added,
            limit=self._fields.limit,
            alpha=self._fields.alpha,
            invariant=self._invariant,
        )
        return over_ranks(routed, self._ranks, self._sent)

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
