"""Tests of runtime.sampling."""

import math
import re
from typing import Any

import pytest

from runtime.errors import BadSampling, GrammarError, PromptTooLong
from runtime.messages import Grammar
from runtime.sampling import MAX_GRAMMAR_CHARS, SamplingSpec

VOCAB = 100


def resolve(spec: SamplingSpec, *, prompt: int = 10, context: int = 50, index: int = 0) -> Any:
    return spec.resolve(prompt, context, VOCAB, seed=7, index=index)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 65),
        pytest.param("n", 10**5000, id="n-of-5000-digits"),
        ("max_new_tokens", -1),
        ("max_new_tokens", 1 << 31),
        ("min_new_tokens", -1),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", 1e300),
        ("top_p", -0.01),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -2),
        ("min_p", -0.01),
        ("min_p", math.nan),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -math.inf),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-300),
        ("repetition_penalty", math.inf),
        ("seed", 1 << 63),
        ("stop", ("",)),
        ("stop", ("x" * 257,)),
        ("stop", ("x",) * 100_000),
        ("stop_token_ids", (VOCAB,)),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", tuple(range(99)) * 3),
        ("logit_bias", {VOCAB: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {5: math.nan}),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", dict.fromkeys(range(1025), 0.0)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    spec = SamplingSpec(**{field: value})

    with pytest.raises(BadSampling, match=field) as refusal:
        spec.validate(vocab_size=VOCAB)

    assert refusal.value.param == field
    assert len(refusal.value.message) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 64),
        ("max_new_tokens", 0),
        ("n", 1),
        ("temperature", 0.0),
        ("temperature", 100.0),
        ("top_p", 0.0),
        ("top_p", 1.0),
        ("top_k", -1),
        ("top_k", 0),
        ("top_k", VOCAB + 5),
        ("min_p", 0.0),
        ("min_p", 1.0),
        ("presence_penalty", -2.0),
        ("presence_penalty", 2.0),
        ("frequency_penalty", -2.0),
        ("frequency_penalty", 2.0),
        ("repetition_penalty", 0.01),
        ("repetition_penalty", 100.0),
        ("seed", -(1 << 63)),
        ("stop", ("x" * 256,) * 16),
        ("logit_bias", {0: -100.0, VOCAB - 1: 100.0}),
    ],
)
def test_the_ends_of_each_range_are_allowed(field: str, value: Any) -> None:
    SamplingSpec(**{field: value}).validate(vocab_size=VOCAB)


def test_min_new_tokens_must_not_exceed_max_new_tokens() -> None:
    with pytest.raises(BadSampling, match="min_new_tokens"):
        resolve(SamplingSpec(min_new_tokens=5, max_new_tokens=4))


def test_what_was_not_asked_for_is_cut_to_the_context() -> None:
    assert resolve(SamplingSpec(default_new_tokens=16)).max_new_tokens == 16
    assert resolve(SamplingSpec(default_new_tokens=128)).max_new_tokens == 40
    assert resolve(SamplingSpec()).max_new_tokens == 40
    assert resolve(SamplingSpec(default_new_tokens=16, min_new_tokens=20)).max_new_tokens == 20


def test_what_was_asked_for_and_does_not_fit_is_refused() -> None:
    assert resolve(SamplingSpec(max_new_tokens=40)).max_new_tokens == 40
    with pytest.raises(PromptTooLong, match="41"):
        resolve(SamplingSpec(max_new_tokens=41))
    with pytest.raises(PromptTooLong):
        resolve(SamplingSpec(min_new_tokens=41))


def test_a_prompt_may_fill_the_context_only_where_nothing_is_sampled() -> None:
    assert resolve(SamplingSpec(max_new_tokens=0), prompt=50).max_new_tokens == 0
    for spec in (SamplingSpec(), SamplingSpec(max_new_tokens=1)):
        with pytest.raises(PromptTooLong):
            resolve(spec, prompt=50)
    with pytest.raises(PromptTooLong):
        resolve(SamplingSpec(max_new_tokens=0), prompt=51)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_a_number_that_is_refused_is_shown_as_it_is(value: float) -> None:
    with pytest.raises(BadSampling, match=f"got {re.escape(repr(value))}$"):
        SamplingSpec(temperature=value).validate(vocab_size=VOCAB)


def test_a_tiny_temperature_is_greedy() -> None:
    assert resolve(SamplingSpec(temperature=9e-6)).temperature == 0.0
    assert resolve(SamplingSpec(temperature=1e-5)).temperature == 1e-5


@pytest.mark.parametrize("top_p", [0, 0.0, -0.0])
def test_top_p_of_zero_is_greedy_at_any_temperature(top_p: float) -> None:
    assert resolve(SamplingSpec(top_p=top_p)).temperature == 0.0
    assert resolve(SamplingSpec(top_p=top_p, temperature=100.0)).temperature == 0.0
    assert resolve(SamplingSpec(top_p=1e-9)).temperature == 1.0


def test_top_k_of_zero_or_of_everything_keeps_all() -> None:
    for top_k in (-1, 0, VOCAB, VOCAB + 1):
        assert resolve(SamplingSpec(top_k=top_k)).top_k == -1
    assert resolve(SamplingSpec(top_k=VOCAB - 1)).top_k == VOCAB - 1


def test_choices_have_seeds_of_their_own_that_repeat() -> None:
    spec = SamplingSpec(n=8, seed=42)

    seeds = [resolve(spec, index=index).seed for index in range(8)]

    assert seeds[0] == 42
    assert len(set(seeds)) == 8
    assert seeds == [resolve(spec, index=index).seed for index in range(8)]
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_neighbouring_seeds_share_no_choice() -> None:
    seeds = [
        resolve(SamplingSpec(n=8, seed=s), index=i).seed for s in range(-4, 4) for i in range(8)
    ]

    assert len(set(seeds)) == 64


def test_without_a_seed_the_servers_is_used() -> None:
    assert resolve(SamplingSpec()).seed == 7


def test_every_field_of_the_spec_reaches_the_scheduler() -> None:
    spec = SamplingSpec(
        min_new_tokens=1,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias={4: 2.0},
        stop_token_ids=(9,),
        ignore_eos=True,
        grammar=Grammar("regex", "a", after=3),
    )

    resolved = resolve(spec)

    for name in ("min_new_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty"):
        assert getattr(resolved, name) == getattr(spec, name)
    assert (resolved.frequency_penalty, resolved.repetition_penalty) == (0.3, 1.1)
    assert (resolved.logit_bias, resolved.stop_token_ids) == ({4: 2.0}, (9,))
    assert resolved.ignore_eos
    assert resolved.grammar == spec.grammar


def test_a_grammar_has_a_length_that_it_may_not_exceed() -> None:
    longest = SamplingSpec(grammar=Grammar("ebnf", "x" * MAX_GRAMMAR_CHARS))
    assert resolve(longest).grammar == longest.grammar

    longer = Grammar("ebnf", "x" * (MAX_GRAMMAR_CHARS + 1), field="ebnf")
    with pytest.raises(GrammarError) as refused:
        resolve(SamplingSpec(grammar=longer))
    assert refused.value.param == "ebnf"


@pytest.mark.parametrize("seed", [None, 5])
def test_all_choices_at_once_are_each_by_itself(seed: int | None) -> None:
    spec = SamplingSpec(n=5, logit_bias={3: 1.0}, max_new_tokens=4, seed=seed)

    found = spec.resolve_all(10, 50, VOCAB, seed=7)

    assert found == [resolve(spec, index=index) for index in range(5)]
    assert all(one.logit_bias is found[0].logit_bias for one in found)
