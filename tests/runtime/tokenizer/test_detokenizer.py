"""Pieces joined are what decoding everything at once gives, whatever the tokens and the pieces."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from runtime.tokenizer.detokenizer import Detokenizer
from tests.runtime.tokenizer.samples import (
    EOS,
    MERGED,
    THINK,
    byte_fallback_tokenizer,
    byte_tokenizer,
)

BYTES = byte_tokenizer()
NOTHING: frozenset[int] = frozenset()
# Bytes that begin, continue and break characters, more often than chance would have them.
TRICKY = [0xE4, 0xBD, 0xA0, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xC3, 0xA9, 0xED, 0xEF, 0xBF, 0x41, 0x20]
tokens = st.one_of(
    st.sampled_from(TRICKY), st.sampled_from(TRICKY), st.integers(0, 310), st.just(EOS)
)


# Tokens of several bytes that begin or end amid a character, beside whole ones.
MIXED = [
    *(b" \xf0\x9f", b"\x98\x80", b"\x80b", b"a\xf0", b"\x9f\x98", b"\x80\xf0", b"\xe4"),
    *(b"\xbd\xa0", b"\xef\xbf", b"\xbd", b"\xef\xbf\xbd", b"\xff", b"x", b"\xa9\xc3"),
]


def mixed_tokenizer() -> Tokenizer:
    """Return a tokenizer whose ids mean `MIXED`."""
    spelled = ["".join(BYTES.id_to_token(byte) or "" for byte in piece) for piece in MIXED]
    vocab = {spelling: token_id for token_id, spelling in enumerate(spelled)}
    tokenizer = Tokenizer(models.WordLevel(vocab, "x"))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pushed(ids: list[int], cuts: list[int], hidden: frozenset[int]) -> list[str]:
    """Return the pieces of `ids` cut at `cuts`, the rest of the text last."""
    detokenizer = Detokenizer(BYTES, hidden)
    marks = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    pieces = [detokenizer.push(ids[a:b]) for a, b in pairwise(marks)]
    return [*pieces, detokenizer.finish()]


@settings(max_examples=120, deadline=None)
@given(st.lists(tokens, max_size=80), st.booleans())
def test_one_token_at_a_time_gives_the_whole_text(ids: list[int], skip: bool) -> None:
    pieces = pushed(ids, list(range(len(ids))), frozenset([EOS]) if skip else NOTHING)

    assert "".join(pieces) == BYTES.decode(ids, skip_special_tokens=skip)


@settings(max_examples=120, deadline=None)
@given(st.lists(tokens, max_size=80), st.lists(st.integers(1, 79), max_size=9), st.booleans())
def test_any_pieces_give_the_whole_text(ids: list[int], cuts: list[int], skip: bool) -> None:
    pieces = pushed(ids, cuts, frozenset([EOS]) if skip else NOTHING)

    assert "".join(pieces) == BYTES.decode(ids, skip_special_tokens=skip)


@settings(max_examples=120, deadline=None)
@given(st.lists(tokens, max_size=80), st.lists(st.integers(1, 79), max_size=9), st.booleans())
def test_a_mark_stands_where_its_token_stood(ids: list[int], cuts: list[int], skip: bool) -> None:
    marks, hidden = {EOS: "\ud800"}, frozenset([EOS]) if skip else NOTHING
    detokenizer = Detokenizer(BYTES, hidden, marks)
    edges = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})

    pieces = [detokenizer.push(ids[a:b]) for a, b in pairwise(edges)] + [detokenizer.finish()]

    runs: list[list[int]] = [[]]
    for token_id in ids:
        if token_id == EOS:
            runs.append([])
        else:
            runs[-1].append(token_id)
    whole = [BYTES.decode(run, skip_special_tokens=False) for run in runs]
    assert "".join(pieces) == "\ud800".join(whole)


few_mixed = st.lists(st.integers(0, len(MIXED) - 1), min_size=1, max_size=3).flatmap(
    lambda few: st.lists(st.sampled_from(few), min_size=16, max_size=60)
)


@settings(max_examples=200, deadline=None)
@given(few_mixed)
def test_tokens_that_break_characters_give_the_whole_text(ids: list[int]) -> None:
    backend = mixed_tokenizer()
    detokenizer = Detokenizer(backend, NOTHING)

    text = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.finish()

    assert text == backend.decode(ids, skip_special_tokens=False)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=30))
def test_valid_text_never_shows_a_replacement_character(text: str) -> None:
    pieces = pushed(list(text.encode()), list(range(200)), NOTHING)

    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


def test_a_character_comes_out_with_its_last_byte() -> None:
    assert pushed(list("a😀".encode()), [1, 2, 3, 4], NOTHING) == ["a", "", "", "", "😀", ""]


def test_an_incomplete_character_comes_out_at_the_end() -> None:
    assert pushed([0x61, 0xF0, 0x9F], [1, 2], NOTHING) == ["a", "", "", "\ufffd"]


def test_special_tokens_are_text_unless_hidden() -> None:
    assert "".join(pushed([0x61, EOS, THINK], [1, 2], NOTHING)) == "a<eos><think>"
    assert "".join(pushed([0x61, EOS, THINK], [1, 2], frozenset([EOS]))) == "a<think>"


def test_special_tokens_are_text_behind_an_incomplete_character_that_was_given_out() -> None:
    detokenizer = Detokenizer(BYTES, NOTHING)
    assert [detokenizer.push([0x61]), detokenizer.push([0xF0])] == ["a", ""]
    assert (detokenizer.held_tokens, detokenizer.finish()) == (1, "\ufffd")
    assert (detokenizer.held_tokens, detokenizer.finish()) == (0, "")

    assert detokenizer.push([EOS, 0x61]) == "<eos>a"


def test_ids_the_tokenizer_does_not_know_have_no_text() -> None:
    assert "".join(pushed([0x61, 299, MERGED, 2_000_000], [1, 2, 3], NOTHING)) == "a世界"


def test_an_endless_run_of_invalid_bytes_is_given_out_as_it_comes() -> None:
    detokenizer = Detokenizer(BYTES, NOTHING)

    given_out = sum(len(detokenizer.push([0xFF])) for _ in range(1000))

    assert given_out > 950
    assert given_out + len(detokenizer.finish()) == 1000


@pytest.mark.parametrize("begun", [1, 2, 3])
def test_a_run_of_invalid_bytes_is_given_out_before_the_character_that_begins_behind_it(
    begun: int,
) -> None:
    detokenizer, face = Detokenizer(BYTES, NOTHING), list("😀".encode())

    given_out = [detokenizer.push([i]) for i in [0xFF] * (16 - begun) + face[:begun]]

    assert "".join(given_out) == "\ufffd" * (16 - begun)
    assert detokenizer.held_tokens == begun
    assert [detokenizer.push([i]) for i in face[begun:]][-1] == "😀"


def test_an_endless_run_of_text_with_half_a_character_is_given_out_as_it_comes() -> None:
    detokenizer = Detokenizer(mixed_tokenizer(), NOTHING)

    given_out = sum(len(detokenizer.push([MIXED.index(b" \xf0\x9f")])) for _ in range(1000))

    assert given_out > 1900
    assert given_out + len(detokenizer.finish()) == 2000


def test_a_character_with_a_token_of_no_text_in_it_is_not_cut_through() -> None:
    vocab = {BYTES.id_to_token(byte) or "": byte for byte in range(256)} | {"": 300}
    backend = Tokenizer(models.WordLevel(vocab, "x"))
    backend.decoder = decoders.ByteLevel()
    ids = [0xFF] * 13 + [0xF0, 0x9F, 300, 0x98, 0x80]
    detokenizer = Detokenizer(backend, NOTHING)

    text = "".join(detokenizer.push([i]) for i in ids) + detokenizer.finish()

    assert text == backend.decode(ids)


def test_a_run_that_ends_as_a_character_is_not_cut_through() -> None:
    ids = [0xFF] * 14 + [0xF0, 0x9F, 0x98, 0x80]

    assert "".join(pushed(ids, list(range(20)), NOTHING)) == "\ufffd" * 14 + "😀"


def test_a_decoder_that_changes_its_mind_costs_no_text() -> None:
    """Bytes of "é", then an invalid one: this decoder turns the whole run into U+FFFD."""
    detokenizer = Detokenizer(byte_fallback_tokenizer(), NOTHING)

    pieces = [detokenizer.push([i]) for i in (0xC3, 0xA9, 0xFF, 256, 256)]

    assert pieces[1] == "é"
    assert ("".join(pieces) + detokenizer.finish()).endswith("aa")


def test_without_tokenizer_there_is_no_text() -> None:
    detokenizer = Detokenizer(None, NOTHING)

    assert detokenizer.push([1, 2, 3]) == ""
    assert detokenizer.finish() == ""
