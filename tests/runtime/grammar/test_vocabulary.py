"""Bytes of token ids: text as it is, control tokens as no text at all."""

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from runtime.errors import GrammarError
from runtime.grammar.vocabulary import load_token_bytes, token_bytes
from tests.testing.stand_in.tokenizer import SPECIALS, VOCAB_SIZE, train_tokenizer


def test_ids_spell_the_text_that_they_encode() -> None:
    tokenizer = train_tokenizer()
    table = token_bytes(tokenizer, VOCAB_SIZE)
    text = 'Straße 今天 {"a": [1, 2]}\n\x00\x7f\u2028'

    assert b"".join(table[i] for i in tokenizer.encode(text).ids) == text.encode()


def test_a_control_token_is_no_text_and_unlike_any_other() -> None:
    table = token_bytes(train_tokenizer(), VOCAB_SIZE)

    marks = table[: len(SPECIALS)]
    assert len(set(marks)) == len(SPECIALS)
    assert all(mark.startswith(b"\xff") for mark in marks)
    assert not any(entry.startswith(b"\xff") and len(entry) > 1 for entry in table[len(SPECIALS) :])


def test_padding_rows_of_the_network_spell_nothing() -> None:
    table = token_bytes(train_tokenizer(), VOCAB_SIZE + 3)

    assert table[VOCAB_SIZE:] == [b"", b"", b""]


def test_an_added_token_that_is_text_is_its_text() -> None:
    tokenizer = train_tokenizer()
    tokenizer.add_tokens([AddedToken("<é>", special=False)])

    assert token_bytes(tokenizer, VOCAB_SIZE + 1)[VOCAB_SIZE] == "<é>".encode()


def test_a_tokenizer_without_bytes_is_refused() -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))

    with pytest.raises(GrammarError, match="byte-level"):
        token_bytes(tokenizer, 2)

    tokenizer = Tokenizer(models.WordLevel({"a b": 0}, unk_token="a b"))
    tokenizer.decoder = decoders.ByteLevel()
    with pytest.raises(GrammarError, match="alphabet"):
        token_bytes(tokenizer, 1)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GrammarError, match=r"tokenizer\.json"):
        load_token_bytes(tmp_path, 8)
