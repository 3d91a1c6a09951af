"""Steps that read early what no launch still writes, against steps that wait for all of it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import layers.linear.quantised as linear
import layers.steps.decode_step as decode_step
from layers.models.deepseek_v4.model import QuantisedV4
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch, Forwarded
from layers.weights.loading import fill_dummy
from mem_cache.pools import KvPools
from tests.testing.compare import assert_same_bits
from tests.testing.direct import Direct
from tests.testing.tiny_model import PACKED, prompt

# Every kind of layer twice, in sizes that kernels of one row take. Of 275 blocks of 4 rows attend
# 256, which are several teams' beside the window; those of 128 are one team's.
CONFIG = dataclasses.replace(
    PACKED,
    hidden_size=512,
    num_hidden_layers=6,
    compress_ratios=(4, 128, 0, 4, 128, 0),
    num_attention_heads=64,
    o_groups=8,
    q_lora_rank=512,
    o_lora_rank=128,
    index_n_heads=64,
    n_routed_experts=8,
    moe_intermediate_size=128,
    index_topk=256,
)
PROMPT, STEPS = 1100, 12


class Decoded:
    """A network whose single tokens are decoded, by plain launches or by replays of one graph."""

    def __init__(self, network: QuantisedV4, *, captured: bool) -> None:
        self._network, self.config, self._captured = network, network.config, captured
        self._graph: tuple[DecodeRows, Tensor, Callable[[], None]] | None = None

    def prefill(self, batch: ForwardBatch, pools: KvPools) -> Forwarded | Tensor:
        """Return the logits that the batch asks for."""
        if batch.input_ids.shape != batch.chunk_start.shape:
            return self._network.prefill(batch, pools)
        rows = DecodeRows(
            input_ids=batch.input_ids,
            position=batch.chunk_start,
            page_table=batch.page_table,
            window=batch.save_window,
            ring=batch.ring,
        )
        if not self._captured:
            return self._network.decode(rows, pools)
        if self._graph is None:
            self._graph = self._capture(rows, pools)
        held, logits, replay = self._graph
        for field in dataclasses.fields(DecodeRows):
            getattr(held, field.name).copy_(getattr(rows, field.name))
        replay()
        return logits.clone()

    def _capture(
        self, rows: DecodeRows, pools: KvPools
    ) -> tuple[DecodeRows, Tensor, Callable[[], None]]:
        # The same step twice writes the same.
        self._network.decode(rows, pools)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._network.decode(rows, pools)
        return rows, logits, graph.replay


def decoded(network: QuantisedV4, rows: int, *, captured: bool) -> Tensor:
    """Return the logits of STEPS steps of rows that begin with PROMPT tokens, [STEPS, rows, V]."""
    model = Decoded(network, captured=captured)
    direct = Direct(model, "fp8", device=network.device, full_pages=40, swa_pages=128, rings=40)
    direct.poison()
    begun = [direct.row(prompt(PROMPT, seed=row)) for row in range(rows)]
    for row in begun:
        direct.prefill(row, logits=())
    found: list[Tensor] = []
    for token in prompt(STEPS, seed=99):
        for row in begun:
            row.tokens.append(token)
        found.append(direct.decode(begun))
    return torch.stack(found)


def seen(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, *, keep: bool) -> list[bool]:
    """Let calls of a function be settled only with `keep`; return what each was to be."""
    told: list[bool] = []
    real = getattr(module, name)

    def watched(*args: Any, settled: bool = False, **more: Any) -> Any:
        told.append(settled)
        return real(*args, settled=settled and keep, **more)

    monkeypatch.setattr(module, name, watched)
    return told


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_what_is_read_early_is_what_is_read_late(
    rows: int, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.device("cuda"):
        network = QuantisedV4(CONFIG, torch.device("cuda"), experts="fp4")
        fill_dummy(network, 5)
        with monkeypatch.context() as patched:
            products = seen(patched, linear, "fp8_linear_of", keep=True)
            attended = seen(patched, decode_step, "paged_attention_quant", keep=True)
            got = decoded(network, rows, captured=captured)
        assert any(attended)
        assert any(products) == all(attended) == (rows == 1)
        with monkeypatch.context() as patched:
            for module, name in (
                (linear, "fp8_linear_of"),
                (decode_step, "paged_attention_quant"),
            ):
                seen(patched, module, name, keep=False)
            want = decoded(network, rows, captured=captured)

    assert bool(want.isfinite().all())
    assert_same_bits(got, want)
