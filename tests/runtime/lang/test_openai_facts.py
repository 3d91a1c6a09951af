"""Tests of runtime.lang.openai_facts."""

from runtime.lang.openai_facts import TokenUsage, generation_facts

CHAT = {
    "content": [{"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": 0}]}]
}
TEXT = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"b": 0}]}


def test_log_probabilities_of_chats_and_texts_are_the_same_rows() -> None:
    for logprobs in (CHAT, TEXT):
        facts = generation_facts("stop", None, logprobs)

        assert facts["output_token_logprobs"] == [[-1.0, None, "a"]]
        assert facts["output_top_logprobs"] == [[[0, None, "b"]]]
        assert facts["logprobs"] == logprobs


def test_what_was_not_told_is_not_there() -> None:
    assert generation_facts("stop", None, None).keys() == {"finish_reason", "usage", "logprobs"}
    assert generation_facts("stop", None, {"content": None}).keys() == {
        "finish_reason",
        "usage",
        "logprobs",
    }


def test_counts_are_found_in_the_usage_and_summed_up() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 3}}
    usage = {"prompt_tokens": 5, "completion_tokens": 2, **details}
    total = TokenUsage()
    for told in (usage, None, usage):
        total.add(told)

    facts = generation_facts("stop", usage, None)

    counts = [facts[k] for k in ("prompt_tokens", "completion_tokens", "cached_tokens")]
    assert counts == [5, 2, 3]
    assert total == TokenUsage(10, 4)
    total.reset()
    assert total == TokenUsage()
