"""Tests of runtime.server.score_plan: where a prompt ends and a choice begins."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from runtime.errors import BadRequest
from runtime.server.prompt import PromptIds
from runtime.server.score_plan import HEALED_TOKENS, plan_score
from runtime.tokenizer.tokenizer import TextTokenizer

BLANK = "\u0120"  # how a byte-level vocabulary spells the blank
WORDS = ("a", "b", "c", ":", "y", "n", "o", BLANK, f"{BLANK}y", f"{BLANK}n", "ab", "bc")


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    """A tokenizer in which a blank belongs to the letter after it, and "ab" is one token."""
    vocab = {word: number for number, word in enumerate(WORDS)}
    merges = [(BLANK, "y"), (BLANK, "n"), ("a", "b"), ("b", "c")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|x|>", special=True)])
    return TextTokenizer(backend, {})


def ids(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


def text(tokenizer: TextTokenizer, prompt: str) -> PromptIds:
    encoded = tokenizer.encode(prompt)
    return PromptIds(encoded, open_tokens=len(encoded))


def test_choices_that_merge_with_nothing_start_where_the_prompt_ends(
    tokenizer: TextTokenizer,
) -> None:
    plan = plan_score(tokenizer, text(tokenizer, "a:"), ["y", "no"])

    assert plan.prefix == ids("a", ":")
    assert plan.choices == [tuple(ids("y")), tuple(ids("n", "o"))]


def test_a_blank_at_the_end_goes_to_the_choice_and_all_are_scored_from_before_it(
    tokenizer: TextTokenizer,
) -> None:
    plan = plan_score(tokenizer, text(tokenizer, "a: "), ["y", "c"])

    assert plan.prefix == ids("a", ":")
    assert plan.choices == [tuple(ids(f"{BLANK}y")), tuple(ids(BLANK, "c"))]


def test_ids_at_the_end_of_a_prompt_are_never_tokenised_again(tokenizer: TextTokenizer) -> None:
    whole = ids("a", ":", BLANK)
    for prompt in (PromptIds(whole, open_tokens=0), PromptIds(whole, open_tokens=0, chat=True)):
        plan = plan_score(tokenizer, prompt, ["y"])

        assert plan.prefix == whole
        assert plan.choices == [tuple(ids("y"))]


def test_only_the_open_end_is_tokenised_again(tokenizer: TextTokenizer) -> None:
    prompt = PromptIds(ids("a", "b"), open_tokens=1)

    plan = plan_score(tokenizer, prompt, ["c"])

    assert plan.prefix == ids("a")
    assert plan.choices == [tuple(ids("bc"))]


def test_a_long_prompt_is_healed_at_its_end_only(tokenizer: TextTokenizer) -> None:
    prompt = text(tokenizer, ":" * 3 * HEALED_TOKENS + " ")

    plan = plan_score(tokenizer, prompt, ["n"])

    assert plan.prefix == prompt.ids[:-1]
    assert plan.choices == [tuple(ids(f"{BLANK}n"))]


def test_choices_may_be_ids(tokenizer: TextTokenizer) -> None:
    plan = plan_score(tokenizer, text(tokenizer, "a: "), [ids("y"), "c"])

    assert plan.prefix == ids("a", ":", BLANK)
    assert plan.choices == [tuple(ids("y")), tuple(ids("c"))]


def test_a_prompt_that_would_merge_away_stays(tokenizer: TextTokenizer) -> None:
    plan = plan_score(tokenizer, text(tokenizer, "a"), ["b"])

    assert (plan.prefix, plan.choices) == (ids("a"), [tuple(ids("b"))])


def test_an_empty_prompt_or_choice_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(BadRequest, match="prompt is empty"):
        plan_score(tokenizer, PromptIds([], open_tokens=0), ["y"])
    for empty in ("", list[int]()):
        with pytest.raises(BadRequest, match=r"choices\[1\] is empty"):
            plan_score(tokenizer, text(tokenizer, "a:"), ["y", empty])


def test_a_choice_that_the_tokenizer_drops_is_refused() -> None:
    backend = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.normalizer = normalizers.Strip()
    dropping = TextTokenizer(backend, {})

    with pytest.raises(BadRequest, match=r"choices\[0\] has no tokens"):
        plan_score(dropping, PromptIds([0], open_tokens=0), [" "])


def test_in_a_chat_no_choice_spells_a_control_token(tokenizer: TextTokenizer) -> None:
    chat = PromptIds(ids("a", ":"), open_tokens=2, chat=True)

    with pytest.raises(BadRequest, match="control token"):
        plan_score(tokenizer, chat, ["<|x|>"])
    assert plan_score(tokenizer, text(tokenizer, "a:"), ["<|x|>"]).choices == [(len(WORDS),)]
