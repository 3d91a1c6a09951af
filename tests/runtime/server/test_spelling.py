"""Tests of runtime.server.spelling."""

from tokenizers import Tokenizer, decoders, models

from runtime.server.spelling import Speller
from runtime.tokenizer.tokenizer import TextTokenizer
from tests.runtime.server.engine import USER, byte_tokenizer


def test_every_byte_token_has_its_own_byte() -> None:
    tokenizer = byte_tokenizer()
    speller = Speller(TextTokenizer(tokenizer, {}))

    for text in ("a", " ", "\n", "é", "\U0001f600", "\x00"):
        ids = tokenizer.encode(text).ids
        assert b"".join(map(speller.bytes_of, ids)) == text.encode()
    assert len({speller.bytes_of(i) for i in range(256)}) == 256


def test_a_control_token_is_spelled_out() -> None:
    speller = Speller(TextTokenizer(byte_tokenizer(), {}))

    assert speller.text(USER) == speller.label(USER) == "<|User|>"


def test_half_a_character_is_labelled_by_its_bytes() -> None:
    tokenizer = byte_tokenizer()
    speller = Speller(TextTokenizer(tokenizer, {}))
    first, second = tokenizer.encode("é").ids

    assert speller.text(first) == "\ufffd"
    assert (speller.label(first), speller.label(second)) == ("bytes:\\xc3", "bytes:\\xa9")


def test_an_unknown_id_has_no_text() -> None:
    assert Speller(TextTokenizer(byte_tokenizer(), {})).text(299) == ""
    assert Speller(TextTokenizer(None, {})).label(5) == ""


def test_byte_fallback_and_low_lines_are_understood() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"<0x0A>": 0, "\u2581a": 1}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    speller = Speller(TextTokenizer(tokenizer, {}))

    assert [speller.text(0), speller.text(1)] == ["\n", " a"]
