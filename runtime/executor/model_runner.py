"""Weights, pools and sampler of the CPU: runs step plans in the order given."""

from collections.abc import Callable, Sequence

import torch

from layers.models.contract import Network, Pools
from layers.parallel.ranks import OneRank, Ranks
from layers.parallel.transfer import transfer_units
from layers.steps.forward_batch import Forwarded
from mem_cache.transfer import Transfer, UnitIds
from runtime.executor.batch_builder import build_batch, fed_tokens, idle_batch
from runtime.executor.joint_tokens import JointTokens
from runtime.executor.launched_step import LaunchedStep
from runtime.executor.lines import Lines
from runtime.executor.plan_rows import PlanRows
from runtime.executor.record_watch import Unwatched, Watch
from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import Copies, Exchange, KeptResult, SampleKept, StepPlan, UnitTransfer

__all__ = ["CpuModelRunner", "run_chunks", "run_copies", "run_exchange", "run_idle"]


def run_copies(copies: Copies, pools: Pools) -> None:
    """Copy what a plan wants copied before its forward pass, in its order."""
    for data, copy in (
        (copies.pages, pools.copy_full_pages),
        (copies.windows, pools.copy_swa_pages),
    ):
        if data:
            copy([(int(a), int(b)) for a, b in unpacked(data, INT32, -1, 2).tolist()])
    if copies.states:
        states = unpacked(copies.states, INT32, -1, 3).tolist()
        pools.copy_states([(int(a), int(b), int(position)) for a, b, position in states])


def run_exchange(exchange: Exchange, pools: Pools, ranks: Ranks, watch: Watch) -> None:
    """Copy units between the pools of ranks; each rank calls it with the same exchange."""
    rank = ranks.shares.rank
    early = exchange.early[rank]
    watch.copied(early, lambda: run_copies(early, pools))
    transfer_units(ranks, pools.unit_views(), [*map(_transfer, exchange.transfers)])
    watch.received(exchange.transfers, rank)


def _transfer(told: UnitTransfer) -> Transfer:
    kinds = (told.pages, told.windows, told.states)
    pairs = [unpacked(data, INT32, -1, 2).T.tolist() if data else ((), ()) for data in kinds]
    source, target = (UnitIds(*(pair[side] for pair in pairs)) for side in (0, 1))
    return Transfer(told.giver, told.taker, source, target)


def run_chunks(
    network: Network,
    pools: Pools,
    lines: Lines,
    plan: StepPlan,
    rows: PlanRows,
    *,
    counts: Sequence[int] | None = None,
    halfway: Callable[[], None] | None = None,
) -> Forwarded:
    """Run the forward pass of a plan's rows; `counts` and `halfway` as in `Network.prefill`.

    A plan without rows is one of a rank among others: it takes part in their step.
    """
    if not len(rows.line):
        idle = run_idle(network, pools, counts)
        return Forwarded(idle.logits[:0], idle.finite[:0])
    return network.prefill(
        build_batch(plan, rows, lines.tables, page_size=network.cache.tree.page_size),
        pools,
        fed=fed_tokens(rows, lines.last),
        halfway=halfway,
        counts=counts,
    )


def run_idle(network: Network, pools: Pools, counts: Sequence[int] | None) -> Forwarded:
    """Take part in a step of other ranks with a token that nobody wants."""
    return network.prefill(idle_batch(network.cache.tree.window_pages), pools, counts=counts)


class CpuModelRunner:
    """Runs a step's forward pass inside `launch`, and its sampling inside `sample`."""

    def __init__(
        self,
        network: Network,
        pools: Pools,
        lines: Lines,
        ranks: Ranks | None = None,
        *,
        watch: Watch | None = None,
    ) -> None:
        """Take the parts.

        ranks  those that share the network, None for one
        watch  verifies in each step what pools hold; None: nobody does
        """
        self._watch: Watch = watch or Unwatched()
        self._ranks = ranks or OneRank()
        self._network = network
        self._pools = pools
        self._lines = lines

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Run the plan's copies and its forward pass, and sample it where the plan says how."""
        return self._launch(plan)

    @torch.inference_mode()
    def launch_part(
        self, plan: StepPlan | None, tokens: JointTokens, exchange: Exchange | None = None
    ) -> LaunchedStep | None:
        """Run this rank's part of a step; see `RankExecutor`."""
        if exchange is not None:
            run_exchange(exchange, self._pools, self._ranks, self._watch)
        if tokens.nothing:
            return None
        if plan is None:
            run_idle(self._network, self._pools, tokens.counts)
            return None
        return self._launch(plan, tokens.counts)

    def sample_kept(self, command: SampleKept) -> KeptResult:
        """Sample lines whose logits were kept."""
        return self._lines.sample_kept(command)

    @torch.inference_mode()
    def _launch(self, plan: StepPlan, counts: Sequence[int] | None = None) -> LaunchedStep:
        rows = self._lines.begin(plan)
        self._watch.copied(plan.copies, lambda: run_copies(plan.copies, self._pools))
        self._watch.reads(rows, self._lines.tables)
        forwarded = run_chunks(self._network, self._pools, self._lines, plan, rows, counts=counts)
        self._watch.wrote(plan, rows, self._lines.tables)
        step = LaunchedStep(plan, rows, self._lines, forwarded.logits, finite=forwarded.finite)
        if plan.sampling is not None:
            step.sample(plan.sampling)
        return step
