"""Well-formed UTF-8, token by token: exactly what Python's decoder takes, and no more."""

import itertools

import numpy as np

from runtime.grammar.utf8 import START, Utf8Guard
from runtime.grammar.vocabulary import token_bytes
from tests.testing.stand_in.tokenizer import SPECIALS, VOCAB_SIZE, train_tokenizer

# 0xff alone marks a control token.
BYTES = [bytes([k]) for k in range(255)] + [b"\xc0"]
TAILS = [bytes(tail) for k in range(4) for tail in itertools.product((0x80, 0x90, 0xBF), repeat=k)]


def is_text(data: bytes) -> bool:
    """Whether these bytes are whole characters."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def begins_text(data: bytes) -> bool:
    """Whether more bytes can make these whole characters."""
    return any(is_text(data + tail) for tail in TAILS)


def test_it_agrees_with_pythons_decoder() -> None:
    guard = Utf8Guard(BYTES)
    edges = [0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF]

    for data in itertools.product([*range(0xC0, 0xFF), *edges], edges, edges):
        state: int | None = START
        for length, byte in enumerate(data, start=1):
            assert state is not None
            state = guard.follow(state, byte)
            part = bytes(data[:length])
            assert (state is not None) == begins_text(part), part
            assert (state == START) == is_text(part), part
            if state is None:
                break


def test_masks_say_what_follow_says() -> None:
    guard = Utf8Guard(token_bytes(train_tokenizer(), VOCAB_SIZE))

    for state, mask in enumerate(guard.masks):
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]
        wanted = [guard.follow(state, token) is not None for token in range(VOCAB_SIZE)]
        assert bits.astype(bool).tolist() == wanted


def test_a_control_token_stands_between_characters_only() -> None:
    guard = Utf8Guard(token_bytes(train_tokenizer(), VOCAB_SIZE))
    inside = [state for state in range(len(guard.masks)) if state != START]

    for token in range(len(SPECIALS)):
        assert guard.follow(START, token) == START
        assert {guard.follow(state, token) for state in inside} == {None}
