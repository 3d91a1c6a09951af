"""Tests of runtime.lang.sampling."""

import pytest

from runtime.lang.sampling import ACCEPTED, FIELDS, REPORTING, Sampling


def test_both_spellings_of_the_token_counts_are_known() -> None:
    assert Sampling.of({"max_new_tokens": 3}) == Sampling.of({"max_tokens": 3})
    assert {"max_new_tokens", "max_tokens", "stop"} <= ACCEPTED


def test_what_is_said_wins_over_defaults_and_gaps_are_filled() -> None:
    default = Sampling(max_tokens=9, temperature=0.5)

    assert Sampling(temperature=0.0).over(default) == Sampling(max_tokens=9, temperature=0.0)


def test_the_native_form_has_only_what_was_said() -> None:
    sampling = Sampling.of({"max_tokens": 3, "stop": ["a", "b"], "return_logprob": True})

    assert sampling.native() == {"max_new_tokens": 3, "stop": ("a", "b")}
    assert sampling.reporting() == {"return_logprob": True}
    assert set(FIELDS) >= REPORTING


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError, match="heat"):
        Sampling.of({"heat": 3})
