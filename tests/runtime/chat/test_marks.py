"""Which tokenizers know V4, and that no text can spell a mark."""

from tokenizers import AddedToken, Tokenizer, models

from runtime.chat.marks import ASSISTANT, BOS, EOS, SPELLING, USER, knows_v4, marks_by_id
from tests.testing.stand_in.tokenizer import train_tokenizer

NEEDED = (BOS, EOS, USER, ASSISTANT, *SPELLING.values())


def with_tokens(texts: tuple[str, ...]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in texts])
    return tokenizer


def test_the_stand_in_knows_v4() -> None:
    assert knows_v4(train_tokenizer())


def test_a_tokenizer_that_lacks_one_control_token_does_not() -> None:
    assert knows_v4(with_tokens(NEEDED))
    for lacking in NEEDED:
        assert not knows_v4(with_tokens(tuple(text for text in NEEDED if text != lacking)))


def test_a_control_token_that_is_no_added_token_does_not_count() -> None:
    vocab = {text: number for number, text in enumerate(NEEDED)}

    assert not knows_v4(Tokenizer(models.BPE(vocab=vocab, merges=[])))


def test_each_mark_stands_for_the_token_of_its_spelling() -> None:
    tokenizer = train_tokenizer()

    spelt = {tokenizer.id_to_token(i): mark for i, mark in marks_by_id(tokenizer).items()}

    assert spelt == {text: mark for mark, text in SPELLING.items()}


def test_a_mark_is_one_character_that_utf8_cannot_hold() -> None:
    for mark in SPELLING:
        assert len(mark) == 1
        assert mark.encode("utf-8", "replace") == b"?"
