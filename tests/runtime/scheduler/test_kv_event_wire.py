"""The bytes of a batch, written out.

vLLM's encoder gives the same for the same events, but for wider headers of some maps.
"""

import msgspec
import numpy as np

from runtime.scheduler.kv_event_wire import Cleared, Removed, Stored, encode_batch


def text(value: str) -> bytes:
    """Return a msgpack string of less than 32 bytes."""
    return bytes([0xA0 | len(value)]) + value.encode()


def test_a_batch_is_an_array_of_maps_byte_for_byte() -> None:
    tokens = np.array([[1, 300], [70000, 0]], np.int32)
    stored = Stored([2**64 - 1, 5], 7, tokens)

    payload = encode_batch(1.5, [stored, Removed([5]), Cleared()])

    wire_tokens = b"\x94\x01\xcd\x01\x2c\xce\x00\x01\x11\x70\x00"
    assert payload == b"".join(
        [
            b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x93",
            b"\x8a" + text("type") + text("BlockStored"),
            text("block_hashes") + b"\x92\xcf" + b"\xff" * 8 + b"\x05",
            text("parent_block_hash") + b"\x07",
            text("token_ids") + wire_tokens,
            text("block_size") + b"\x02",
            text("lora_id") + b"\xc0",
            text("medium") + text("GPU"),
            text("lora_name") + b"\xc0",
            text("group_idx") + b"\x00",
            text("kv_cache_spec_kind") + text("full_attention"),
            b"\x84" + text("type") + text("BlockRemoved"),
            text("block_hashes") + b"\x91\x05",
            text("medium") + text("GPU"),
            text("group_idx") + b"\x00",
            b"\x81" + text("type") + text("AllBlocksCleared"),
            b"\x00",
        ]
    )


def test_the_top_of_a_sequence_says_that_it_has_no_parent() -> None:
    payload = encode_batch(0.0, [Stored([1], None, np.zeros((1, 256), np.int32))])

    event = msgspec.msgpack.decode(payload)[1][0]
    assert "parent_block_hash" in event
    assert event["parent_block_hash"] is None
    assert (event["block_size"], len(event["token_ids"])) == (256, 256)
