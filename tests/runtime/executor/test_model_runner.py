"""Steps on a real network: copies first, tokens of the right rows, values where asked."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from layers.models.deepseek_v4.model import ReferenceV4
from layers.steps.forward_batch import Forwarded
from mem_cache.spec import PoolSizes, TreeSpec
from runtime.executor.batch_builder import build_batch
from runtime.executor.plan_rows import PlanRows
from runtime.messages import Grammar, Logprobs, Output
from runtime.wire.arrays import INT32, packed
from runtime.wire.step import Copies, Sample
from tests.testing.cpu_runner import cpu_runner, tiny_network
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.plan_arrays import PlanReader
from tests.testing.plans import entry_tokens, mask, sample_kept
from tests.testing.scheduler_rig import Rig
from tests.testing.tiny_model import CONFIG, prompt

SIZES = PoolSizes(full_pages=8, swa_pages=40, states=8)


@pytest.fixture(scope="module")
def model() -> ReferenceV4:
    """A random network with every kind of layer."""
    return tiny_network()


@pytest.fixture
def rig(model: ReferenceV4) -> Rig:
    """A scheduler on that network."""
    return make(model)


def make(
    model: ReferenceV4,
    *,
    reuse: bool = True,
    chunk: int = 50,
    grammars: FakeGrammars | None = None,
    overlap: bool = False,
) -> Rig:
    runner = cpu_runner(model, model.pools(SIZES))
    return Rig(
        SIZES,
        spec=TreeSpec(),
        reuse=reuse,
        chunk=chunk,
        runner=runner,
        grammars=grammars,
        overlap=overlap,
    )


def test_tokens_are_the_likeliest_of_the_forward_pass(model: ReferenceV4, rig: Rig) -> None:
    first = rig.send(prompt(20, 1), 1)
    second = rig.send(prompt(30, 2), 1)
    rig.run()

    (plan,) = rig.plans
    fresh = model.pools(SIZES)
    with torch.inference_mode():
        tables = PlanReader(TreeSpec()).tables
        tables.apply(plan.plan.changes)
        rows = PlanRows.of(plan.plan.rows)
        batch = build_batch(plan.plan, rows, tables, page_size=TreeSpec().page_size)
        logits = model.prefill(batch, fresh).logits
    best = logits.argmax(-1).tolist()
    assert [rig.tokens(first), rig.tokens(second)] == [[best[0]], [best[1]]]


@pytest.mark.parametrize("chunk", [50, -1])
def test_a_cache_changes_no_token(model: ReferenceV4, chunk: int) -> None:
    tokens = prompt(140, 3)
    got: list[list[int]] = []
    for reuse in (True, False):
        rig = make(model, reuse=reuse, chunk=chunk)
        requests: list[int] = []
        for text in (tokens, tokens, [*tokens[:139], 5, 6]):
            requests.append(rig.send(text, 3))
            rig.run()
        got += [rig.tokens(request) for request in requests]
        assert [rig.cached(r) for r in requests] == ([0, 139, 139] if reuse else [0, 0, 0])
        rig.assert_conserved()

    assert got[:3] == got[3:]


def test_prompt_values_come_back_per_span_and_do_not_depend_on_company(
    model: ReferenceV4, rig: Rig
) -> None:
    wanted = [Logprobs(2, 3, (4, 9)), Logprobs(0), Logprobs(25, 1)]
    prompts = [prompt(30, 4 + i) for i in range(3)]
    together = [rig.send(p, 1, logprobs=w) for p, w in zip(prompts, wanted, strict=True)]
    rig.run()

    for request, text, want in zip(together, prompts, wanted, strict=True):
        alone = make(model, chunk=-1)
        single = alone.send(text, 1, logprobs=want)
        alone.run()
        reported = rig.outputs(request)[0]
        assert _with_id(reported, 0) == _with_id(alone.outputs(single)[0], 0)
        assert reported.prompt_logprobs is not None
        values = reported.prompt_logprobs.part(0, None)
        assert values.ids == text[want.start :]
        assert all(len(t) == want.top for t in values.top[1:])
        assert all([i for _, i in p] == list(want.token_ids) for p in values.picked[1:])


def _with_id(output: Output, request_id: int) -> object:
    """Return an output without what differs between two runs: name, times, chunks."""
    prompt = output.prompt_logprobs
    rest = msgspec.structs.replace(
        output, request_id=request_id, queue_s=0.0, prefill_s=0.0, prompt_logprobs=None
    )
    return rest, None if prompt is None else prompt.part(0, None)


def test_a_step_without_samples_returns_none(rig: Rig) -> None:
    request = rig.send(prompt(20, 9), 0, logprobs=Logprobs(15))
    rig.run()

    (output,) = rig.outputs(request)
    assert output.token_ids == []
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs.values) == 5


def test_copies_run_before_the_forward_pass(
    model: ReferenceV4, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make(model)
    request = rig.send(prompt(20, 10), 1)
    rig.run()
    pairs = [(1, 5)], [(2, 6), (6, 7)], [(3, 4, 20)]
    copies = Copies(*(packed(some, INT32) for some in pairs))
    plan = msgspec.structs.replace(rig.plans[0].plan, copies=copies)
    pools = model.pools(SIZES)
    calls: list[tuple[str, list[tuple[int, ...]]]] = []

    def note(name: str) -> Callable[[list[tuple[int, ...]]], None]:
        return lambda pairs: calls.append((name, pairs))

    for name in ("copy_full_pages", "copy_swa_pages", "copy_states"):
        monkeypatch.setattr(pools, name, note(name))
    prefill = model.prefill
    counted: list[int] = []

    def counting(*given: Any, **options: Any) -> Forwarded:
        counted.append(len(calls))
        return prefill(*given, **options)

    monkeypatch.setattr(model, "prefill", counting)
    result = cpu_runner(model, pools).launch(plan).result()

    assert counted == [3]
    assert dict(calls) == {
        "copy_full_pages": [(1, 5)],
        "copy_swa_pages": [(2, 6), (6, 7)],
        "copy_states": [(3, 4, 20)],
    }
    assert entry_tokens(result) == [rig.tokens(request)]


def test_a_row_whose_logits_are_not_finite_fails_alone(
    model: ReferenceV4, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill = model.prefill

    def broken(*given: Any, **options: Any) -> Forwarded:
        made = prefill(*given, **options)
        made.logits[0, 3] = np.nan
        return made

    bad, good = rig.send(prompt(20, 11), 1), rig.send(prompt(20, 12), 1)
    monkeypatch.setattr(model, "prefill", broken)
    rig.run()

    assert rig.outputs(bad)[-1].error == "logits are not finite"
    assert len(rig.tokens(good)) == 1
    assert rig.residency.cache.match(np.array(prompt(20, 11)), limit=20).full_tokens == 0
    assert rig.residency.cache.match(np.array(prompt(20, 12)), limit=20).full_tokens == 20
    rig.assert_conserved()


@pytest.mark.parametrize("seed", range(3))
def test_rows_sampled_late_say_what_they_would_have_said_in_their_step(
    model: ReferenceV4, seed: int
) -> None:
    """Held rows get the same tokens and the same bits of probability, and so does their company."""
    draw = random.Random(seed)
    told: list[list[tuple[list[int], list[float | None]]]] = []
    for late in (False, True):
        grammars = FakeGrammars(CONFIG.vocab_size)
        grammars.allowed = np.full_like(grammars.all, 0x55555555)
        grammars.instant = not late
        rig = make(model, grammars=grammars)
        asked = [
            rig.send(
                prompt(20 + 3 * k, 30 + k),
                12,
                logprobs=Logprobs(1000),
                grammar=None if k == 0 else Grammar("regex", "x"),
            )
            for k in range(4)
        ]
        while rig.busy or rig.socket.inbox:
            if late and draw.random() < 0.5 and grammars.outputs:
                ids = list(grammars.outputs)
                grammars.answer(*draw.sample(ids, draw.randint(1, len(ids))))
            rig.scheduler.turn()
        rig.assert_conserved()
        assert (sum(plan.decodes for plan in rig.plans) > 12) == late
        told.append([(rig.tokens(r), _values(rig, r)) for r in asked])

    assert told[0] == told[1]
    assert all(token % 2 == 0 for tokens, _ in told[1][1:] for token in tokens)


def _values(rig: Rig, request: int) -> list[float | None]:
    return [v for o in rig.outputs(request) if o.logprobs is not None for v in o.logprobs.values]


def test_logits_are_kept_until_there_is_a_mask(model: ReferenceV4, rig: Rig) -> None:
    asked = [rig.send(prompt(20 + k, 40 + k), 1) for k in range(2)]
    rig.run()
    (plan,) = rig.plans
    sampling = msgspec.structs.replace(plan.plan.joins[1].sampling, constrained=True)
    ruled = msgspec.structs.replace(plan.plan.joins[1], sampling=sampling)
    joins = [plan.plan.joins[0], ruled]
    runner = cpu_runner(model, model.pools(SIZES))

    step = runner.launch(msgspec.structs.replace(plan.plan, joins=joins, sampling=None))
    step.sample(Sample(plan.plan.step, keep=packed([ruled.line], INT32)))

    assert entry_tokens(step.result()) == [rig.tokens(asked[0]), []]
    anything = mask(ruled.line, range(CONFIG.vocab_size), CONFIG.vocab_size)
    later = runner.sample_kept(sample_kept(ruled.line, masks=[anything]))
    assert entry_tokens(later) == [rig.tokens(asked[1])]


def test_a_scheduler_that_overlaps_steps_says_the_same(model: ReferenceV4) -> None:
    """Rows come and go; steps are fed with tokens that the host does not know."""
    told: list[list[list[int]]] = []
    for overlap in (False, True):
        rig = make(model, overlap=overlap)
        asked = [rig.send(prompt(9 + 7 * k, 60 + k), 3 + 2 * k, stop=(5, 17)) for k in range(6)]
        rig.run()
        assert any(plan.feed.any() for plan in rig.plans) == overlap
        rig.assert_conserved()
        told.append([rig.tokens(request) for request in asked])

    assert told[0] == told[1]
