"""The gradient of one step: what its micro-batches, and the processes of the run, add up to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tests.train.losses import Tally, Targets, token_loss
from tests.train.mode import Mode
from tests.train.network import Outcome, V4Trainee
from tests.train.ranks import Ranks


@dataclass(slots=True)
class StepSums:
    """What one step's micro-batches add up to.

    loss      of the tokens, divided by their weights
    index_kl  the indexer's divergence; NaN if it was not trained
    loads     share of its layer's tokens of each expert, by layer
    """

    loss: Tensor | float = 0.0
    index_kl: Tensor | float = math.nan
    tally: Tally | None = None
    loads: dict[int, Tensor] | None = None

    def add(self, loss: Tensor, tally: Tally, outcome: Outcome, share: float) -> None:
        """Add a micro-batch, `share` of the step's rows."""
        self.loss = self.loss + loss.detach()
        self.tally = tally if self.tally is None else self.tally + tally
        loads = {layer: report.load for layer, report in outcome.routing.items()}
        before = self.loads or dict.fromkeys(loads, 0.0)
        self.loads = {layer: before[layer] + loads[layer] * share for layer in loads}

    def add_divergence(self, kl: Tensor) -> None:
        """Add a micro-batch's part of the indexer's divergence."""
        kept = 0.0 if isinstance(self.index_kl, float) else self.index_kl
        self.index_kl = kept + kl.detach()


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Of the parts of the loss beside the tokens'."""

    index: float
    balance: float


def step_gradient(
    network: V4Trainee,
    parameters: Mapping[str, Tensor],
    tokens: Tensor,
    targets: Targets,
    *,
    mode: Mode,
    micro_rows: int,
    weights: LossWeights,
    ranks: Ranks,
) -> StepSums:
    """Leave the gradient of a step in `parameters`, the same in all processes.

    tokens      [B, T] int64, all of the step's
    targets     of them
    micro_rows  rows that a device computes at once
    Raises ValueError when the processes cannot share the rows.
    """
    sums, total = StepSums(), targets.shares.sum().clamp(min=1e-9)
    own = ranks.part(len(tokens))
    for first in range(own.start, own.stop, micro_rows):
        part = slice(first, min(first + micro_rows, own.stop))
        share = (part.stop - part.start) / len(tokens)
        outcome = network(parameters, tokens[part], mode)
        loss, tally = token_loss(outcome.logits, targets.rows(part))
        loss = loss / total
        balance = sum(report.balance for report in outcome.routing.values())
        whole = loss + weights.balance * balance * share
        divergences = [report.loss for report in outcome.index.values() if report.loss is not None]
        if divergences:
            kl = torch.stack(divergences).mean() * share
            whole = whole + weights.index * kl
            sums.add_divergence(kl)
        whole.backward()
        sums.add(loss, tally, outcome, share)
    if ranks.count > 1:
        _add_up(ranks, parameters, sums)
    return sums


def _add_up(ranks: Ranks, parameters: Mapping[str, Tensor], sums: StepSums) -> None:
    trained = [tensor for tensor in parameters.values() if tensor.requires_grad]
    for tensor in trained:
        # One process may have had no tokens for an expert; all of them send as much.
        tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
    figures = [sums.loss, sums.index_kl, *(sums.loads or {}).values()]
    ranks.add_up([tensor.grad for tensor in trained if tensor.grad is not None])
    ranks.add_up([figure for figure in figures if isinstance(figure, Tensor)])
    if sums.tally is not None:
        ranks.add_up(sums.tally.sums)
