"""A share costs a message nothing where there is only one."""

import msgspec

from runtime.share import Share


def test_a_share_survives_its_way_and_a_nameless_one_is_empty() -> None:
    share = Share("a", 2.0, 3, 4)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(share), type=Share) == share
    assert msgspec.msgpack.encode(Share()) == msgspec.msgpack.encode({})
