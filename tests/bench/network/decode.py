"""Decode steps of many rows at one context length, replayed one after another."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from jit_kernels.likeliest import likeliest
from layers.experts.contract import ExpertForm
from layers.models.deepseek_v4.config import pool_spec
from layers.models.deepseek_v4.model import QuantisedV4
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.decode_step import DecodeRows
from mem_cache.spec import div_ceil
from tests.bench.network.clock import replayed, rest, stage, times_ms
from tests.bench.network.floor import (
    StepBytes,
    dense_bytes,
    expected_experts,
    kv_bytes,
    one_expert_bytes,
    routed,
)
from tests.bench.network.ranks import RanksOrCopies
from tests.bench.network.report import Figures
from tests.bench.network.units import RowUnits, copy_row, forward_batch, packed_steps

__all__ = ["Context", "measure_decode"]

SETTLING = 3
# Steps before, between and after those that are timed.
OTHER_STEPS = 16


@dataclass(frozen=True, slots=True)
class _Decoder:
    """Rows that go on by a step: logits, the likeliest token of each row, the next position."""

    network: QuantisedV4
    rows: DecodeRows
    pools: KvPools

    def step(self) -> None:
        logits = self.network.decode(self.rows, self.pools)
        self.rows.input_ids.copy_(likeliest(logits))
        self.rows.position.add_(1)

    def experts(self) -> list[int]:
        """Go on by a step; return the distinct experts of each layer."""
        with routed() as counts:
            self.step()
        return counts


class Context:
    """Rows of one length in units of their own; all hold what one of them computed."""

    def __init__(
        self,
        network: QuantisedV4,
        *,
        tokens: int,
        rows: int,
        replays: int,
        chunk: int,
        longest: int = 0,
    ) -> None:
        """Compute one row of random tokens by chunks, and make room for `rows` more.

        replays  how many steps a case times
        longest  tokens that the page tables have columns for, if more than the rows need

        Raises ValueError for more tokens than the network has positions.
        """
        self.network, self.tokens, self._most, self.replays = network, tokens, rows, replays
        config, device = network.config, network.device
        spec = pool_spec(config, "fp8")
        size, needed = spec.tree.page_size, tokens + replays + OTHER_STEPS
        most = config.max_position_embeddings
        if max(longest, needed) > most:
            raise ValueError(f"{max(longest, needed)} tokens: the network has {most} positions")
        self._pages = div_ceil(max(longest, needed), size)
        self._units, self.pools = RowUnits.scattered(
            spec, rows=rows + 1, tokens=needed, device=device
        )
        print(f"# {self.pools.bytes / 1e9:.2f} GB of pools, {self._pages} pages a row at most")
        prompt = torch.randint(config.vocab_size, (1, tokens))
        with stage(f"prefill of {tokens} tokens", device):
            for chunks in packed_steps(prompt=tokens, rows=1, budget=chunk):
                batch = forward_batch(self._units, chunks, prompt, page_size=size)
                network.prefill(batch, self.pools)

    def decoder(self, rows: int) -> _Decoder:
        """Return `rows` rows at their first step, with random tokens to go on from."""
        if rows > self._most:
            raise ValueError(f"there is room for {self._most} rows, {rows} are wanted")
        config, device = self.network.config, self.network.device
        targets = slice(1, rows + 1)
        with stage(f"copies of {rows} rows", device):
            copy_row(self.pools, self._units, 0, targets)
        ids: Tensor = torch.randint(config.vocab_size, (rows,), device=device)
        inputs = self._units.decode_rows(targets, ids, position=self.tokens, pages=self._pages)
        return _Decoder(self.network, inputs, self.pools)

    def replay(self, decoder: _Decoder) -> Callable[[], None]:
        """Return what replays the decoder's step, warm, on a device that has rested."""
        device = self.network.device
        with stage("warm-up and capture", device):
            replay = replayed(decoder.step, device)
        rest(device)
        for _ in range(SETTLING):
            replay()
        return replay


def measure_decode(
    context: Context,
    rows: int,
    *,
    form: ExpertForm,
    bandwidth: float,
    ranks: RanksOrCopies | None = None,
) -> Figures:
    """Return the median time of a step beside its floor.

    ranks  those that share the network: the floor is this rank's bytes and the exchanges' time

    The experts of the floor are those actually routed to: the mean of a step before and a step
    after those that are timed, which are not known themselves.
    """
    network = context.network
    config, decoder = network.config, context.decoder(rows)
    with stage("a first step", network.device):
        before = decoder.experts()
    times = times_ms(context.replay(decoder), context.replays, network.device)
    median, exchanges_ms = statistics.median(times), 0.0
    if ranks is not None:
        with ranks.copies():
            alone = times_ms(context.replay(decoder), context.replays, network.device)
        exchanges_ms = median - statistics.median(alone)
        print(f"# exchanges add {exchanges_ms:.3f} ms")
    after = decoder.experts()
    touched = (sum(before) + sum(after)) / 2
    layers = config.num_hidden_layers
    world = 1 if ranks is None else ranks.shares.world
    read = StepBytes(
        dense=dense_bytes(network),
        experts=round(touched * one_expert_bytes(config, form) / world),
        kv=rows * kv_bytes(config, context.pools.spec, context.tokens),
    )
    uniform = expected_experts(config, rows)
    print(
        f"# read: dense {read.dense / 1e9:.2f} GB, experts {read.experts / 1e9:.2f} GB "
        f"({sum(before) / layers:.0f} a layer before, {sum(after) / layers:.0f} after, "
        f"{uniform:.0f} if uniform), KV {read.kv / 1e9:.2f} GB; "
        f"steps of {min(times):.3f} to {max(times):.3f} ms"
    )
    return Figures(
        phase="decode",
        experts=form,
        rows=rows,
        tokens=context.tokens,
        ms=median,
        tokens_per_s=rows / median * 1e3,
        floor_ms=read.floor_ms(bandwidth) + exchanges_ms,
        experts_a_layer=touched / layers,
        kv_floor_ms=StepBytes(dense=0, experts=0, kv=read.kv).floor_ms(bandwidth),
        deterministic=network.deterministic,
    )
