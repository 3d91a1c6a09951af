"""Tests of runtime.server.native_schema."""

import msgspec
import pytest

from runtime.errors import BadRequest
from runtime.server.body import decode
from runtime.server.native_schema import GenerateBody, SamplingParams

UNSUPPORTED_PARAMS = ("stop_regex", "custom_params", "stream_interval", "beam_width")


def params(name: str, value: object) -> SamplingParams:
    return msgspec.convert({name: value}, SamplingParams)


def test_the_defaults_are_the_ones_clients_expect() -> None:
    spec = SamplingParams().spec(vocab_size=10)

    assert (spec.n, spec.max_new_tokens, spec.default_new_tokens) == (1, None, 128)
    assert (spec.temperature, spec.top_p, spec.top_k, spec.seed) == (1.0, 1.0, -1, None)
    assert spec.stop == ()


def test_every_field_reaches_the_spec() -> None:
    params = SamplingParams(
        n=2, max_new_tokens=5, min_new_tokens=1, temperature=0.5, top_p=0.9, top_k=3, min_p=0.1,
        presence_penalty=0.1, frequency_penalty=0.2, repetition_penalty=1.2, logit_bias={1: 2.0},
        sampling_seed=7, stop="x", stop_token_ids=[4], ignore_eos=True, skip_special_tokens=False,
        spaces_between_special_tokens=False, no_stop_trim=True,
    )  # fmt: skip

    spec = params.spec(vocab_size=10)

    for name in ("n", "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p"):
        assert getattr(spec, name) == getattr(params, name)
    assert (spec.presence_penalty, spec.frequency_penalty) == (0.1, 0.2)
    assert (spec.repetition_penalty, spec.logit_bias, spec.seed) == (1.2, {1: 2.0}, 7)
    assert (spec.stop, spec.stop_token_ids, spec.ignore_eos) == (("x",), (4,), True)
    assert (spec.skip_special_tokens, spec.no_stop_trim) == (False, True)
    assert not spec.spaces_between_special_tokens


@pytest.mark.parametrize("name", ["seed", "sampling_seed"])
def test_a_refused_seed_is_named_as_it_was_sent(name: str) -> None:
    with pytest.raises(BadRequest, match=f"^{name} must be between") as refusal:
        params(name, 1 << 63).spec(vocab_size=10)

    assert refusal.value.param == name


@pytest.mark.parametrize("key", [-1, (1 << 61) - 1, 1 << 70])
def test_a_number_that_is_no_token_id_is_no_key(key: int) -> None:
    body = b'{"text": "x", "sampling_params": {"logit_bias": {"%d": 1}}}' % key

    with pytest.raises(BadRequest, match="logit_bias"):
        decode(body, GenerateBody)


@pytest.mark.parametrize("name", UNSUPPORTED_PARAMS)
def test_a_sampling_field_that_would_change_the_answer_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match=f"{name} is not supported") as refusal:
        params(name, "x").spec(vocab_size=10)

    assert refusal.value.param == name
