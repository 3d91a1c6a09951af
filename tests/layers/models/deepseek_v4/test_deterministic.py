"""The same bits for a token whatever else a step computes, decoded or prefilled, cold or reused."""

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from layers.experts.contract import ExpertForm
from layers.models.deepseek_v4.model import QuantisedV4
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch, Forwarded
from layers.weights.loading import fill_dummy
from tests.testing.compare import assert_same_bits
from tests.testing.direct import Chunk, Direct
from tests.testing.fused_model import FusedModel, decode_rows
from tests.testing.tiny_model import EVERY_KIND, prompt

pytestmark = pytest.mark.usefixtures("poisoned_empty")

PROMPT = prompt(421, seed=1)
EVERY = range(len(PROMPT))
# Over the end of a block of 128, wherever it starts.
SPAN = 130


@cache
def network(form: ExpertForm, device: torch.device) -> QuantisedV4:
    """Return a deterministic network of random weights; made once."""
    with torch.random.fork_rng():
        made = QuantisedV4(EVERY_KIND, device, experts=form, deterministic=True)
        fill_dummy(made, 5)
    return made


def driven(form: ExpertForm, device: torch.device, *, decodes: bool = False) -> Direct:
    """Return the network over poisoned pools."""
    model = FusedModel(network(form, device), decodes=decodes)
    direct = Direct(model, "fp8", device=device, full_pages=40, swa_pages=128, rings=40)
    direct.poison()
    return direct


@cache
def alone(form: ExpertForm, device: torch.device) -> Tensor:
    """Return the logits of the whole prompt in one chunk, [T, vocab]."""
    direct = driven(form, device)
    logits = direct.prefill(direct.row(PROMPT), logits=EVERY)
    assert logits.isfinite().all()
    assert logits.std() > 0.1
    return logits


# On the CPU, where fp4 goes the way that fp8 goes, one case of each kind is for everybody, and the
# others are for those with time.
ELSEWHERE = () if torch.cuda.is_available() else (pytest.mark.slow,)


def few(first: int, *others: int) -> list[Any]:
    """Return parameters of which all but the first are for a device."""
    return [first, *(pytest.param(other, marks=ELSEWHERE) for other in others)]


@pytest.fixture(params=[pytest.param("fp4", marks=ELSEWHERE), "fp8"])
def form(request: pytest.FixtureRequest) -> ExpertForm:
    """Return the form in which experts are kept."""
    return request.param


@pytest.mark.parametrize("chunk", few(7, 1, 64, 256))
def test_chunking_changes_no_bit(device: torch.device, form: ExpertForm, chunk: int) -> None:
    direct = driven(form, device)
    row = direct.row(PROMPT)

    parts: list[Tensor] = []
    if chunk < 64:
        # A few small ones do, at the beginning and over the end of a block of 128.
        parts.append(direct.prefill(row, stop=3 * chunk, chunk=chunk, logits=EVERY))
        parts.append(direct.prefill(row, stop=384 - 2 * chunk, logits=EVERY))
        parts.append(direct.prefill(row, stop=384 + 2 * chunk, chunk=chunk, logits=EVERY))
    parts.append(direct.prefill(row, chunk=max(chunk, 64), logits=EVERY))

    assert_same_bits(torch.cat(parts), alone(form, device))


def test_of_both_forms_of_experts_the_one_that_is_multiplied_is_kept(device: torch.device) -> None:
    both = driven("both", device)

    got = both.prefill(both.row(PROMPT[:9]), logits=range(9))

    assert_same_bits(got, alone("fp4", device)[:9])


@pytest.mark.parametrize("place", few(7, 0))
def test_company_in_a_step_changes_no_bit(
    device: torch.device, form: ExpertForm, place: int
) -> None:
    direct = driven(form, device)
    mine = direct.row(PROMPT)
    others = [direct.row(prompt(length, seed=length)) for length in (300, 3, 129, 256, 40, 9, 201)]
    rows = [*others[:place], mine, *others[place:]]
    parts: list[Tensor] = []
    for stops in ((130, 3, 100, 256, 11, 5, 7), (300, 3, 129, 256, 40, 9, 201)):
        ends = {id(row): stop for row, stop in zip(others, stops, strict=True)}
        ends[id(mine)] = 261 if not parts else len(PROMPT)
        chunks = [
            Chunk(row, ends[id(row)], logits=range(row.done, ends[id(row)]) if row is mine else ())
            for row in rows
            if row.done < ends[id(row)]
        ]
        parts.append(direct.step(chunks)[0])

    assert_same_bits(torch.cat(parts), alone(form, device))


@pytest.mark.parametrize("company", few(3, 0))
def test_decoded_tokens_have_the_bits_of_prefilled_ones(
    device: torch.device, form: ExpertForm, company: int
) -> None:
    direct = driven(form, device, decodes=True)
    mine = direct.row(PROMPT[:250])
    rows = [mine, *(direct.row(prompt(length, seed=9)) for length in (120, 1, 255)[:company])]
    parts = [direct.prefill(row, logits=range(250) if row is mine else ()) for row in rows][:1]

    for token in PROMPT[250:263]:
        for row in rows:
            row.tokens.append(token)
        parts.append(direct.decode(rows)[:1])
    assert direct.model.decoded == 13  # type: ignore[attr-defined]
    # What a second turn of the conversation brings, over what was decoded.
    mine.tokens += PROMPT[263:]
    parts.append(direct.prefill(mine, chunk=100, logits=EVERY))

    assert_same_bits(torch.cat(parts), alone(form, device))


def test_a_resumed_row_has_the_bits_of_a_cold_one(device: torch.device, form: ExpertForm) -> None:
    direct = driven(form, device, decodes=True)
    source = direct.row(PROMPT)
    want = alone(form, device)
    _, points = direct.step([Chunk(source, 300, points=[51, 128, 131, 256, 299])])

    for point in points:
        stop = min(point.position + SPAN, len(PROMPT))
        row = direct.resume(PROMPT, point, source.pages)
        got = direct.prefill(row, stop=stop, chunk=90, logits=range(stop))
        assert_same_bits(got, want[point.position : stop], what=f"from {point.position}")
        direct.release(row)


def test_a_replayed_row_has_the_bits_of_a_cold_one(device: torch.device, form: ExpertForm) -> None:
    direct = driven(form, device)
    source = direct.row(PROMPT)
    direct.prefill(source, stop=410, logits=())
    length = direct.spec.replay_tokens
    assert 0 < length < 400
    row = direct.replay(PROMPT, source.pages, 400 - length, 400)

    got = direct.prefill(row, chunk=77, logits=range(400, len(PROMPT)))

    assert_same_bits(got, alone(form, device)[400:])


def test_the_most_rows_of_a_call_change_no_bit(
    device: torch.device, form: ExpertForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = alone(form, device)
    monkeypatch.setattr("layers.steps.chunks.rows.MOST_ROWS", 16)
    direct = driven(form, device)

    got = direct.prefill(direct.row(PROMPT), chunk=300, logits=EVERY)

    assert_same_bits(got, want)


class Graphed(FusedModel):
    """Runs all steps of decoding rows as one graph, captured at the first of them."""

    def __init__(self, network: QuantisedV4) -> None:
        super().__init__(network, decodes=False)
        self._rows: DecodeRows | None = None
        self._graph = torch.cuda.CUDAGraph()
        self._logits = torch.empty(0)

    def prefill(self, batch: ForwardBatch, pools: KvPools) -> Forwarded | Tensor:
        """Return the logits that the batch asks for."""
        if not self.decodes:
            return super().prefill(batch, pools)
        inputs = decode_rows(batch)
        if self._rows is None:
            # The same step twice writes the same.
            self._rows = inputs
            self.network.decode(inputs, pools)
            with torch.cuda.graph(self._graph):
                self._logits = self.network.decode(inputs, pools)
        for field in dataclasses.fields(DecodeRows):
            getattr(self._rows, field.name).copy_(getattr(inputs, field.name))
        self._graph.replay()
        self.decoded += 1
        return self._logits[batch.logit_tokens]


@pytest.mark.gpu
def test_a_graph_gives_the_bits_of_plain_launches(form: ExpertForm) -> None:
    device = torch.device("cuda", 0)
    made = network(form, device)
    want, got = (_decoded(model) for model in (FusedModel(made), Graphed(made)))
    cold = alone(form, device)

    assert_same_bits(got, want)
    assert_same_bits(got[:, 0].contiguous(), cold[258:266])


def _decoded(model: FusedModel) -> Tensor:
    """Return the logits of eight steps of three rows, [8, 3, vocab]."""
    direct = Direct(model, "fp8", device=model.network.device)
    direct.poison()
    rows = [direct.row(PROMPT[:258]), direct.row(PROMPT[30:40]), direct.row(PROMPT[:127])]
    model.decodes = False
    for row in rows:
        direct.prefill(row, logits=())
    model.decodes = True
    found: list[Tensor] = []
    for token in PROMPT[258:266]:
        for row in rows:
            row.tokens.append(token)
        found.append(direct.decode(rows))
    assert model.decoded == len(found)
    return torch.stack(found)
