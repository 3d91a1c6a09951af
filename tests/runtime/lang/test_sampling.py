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


def test_a_whole_number_is_an_integer_where_one_is_meant() -> None:
    sampling = Sampling.of({"top_k": -1.0, "max_tokens": 3.0, "top_p": 1.0, "n": 1.5})

    assert repr((sampling.top_k, sampling.max_tokens, sampling.top_p)) == "(-1, 3, 1.0)"
    assert sampling.n == 1.5  # which the backend refuses
