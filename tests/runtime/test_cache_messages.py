"""Messages about the cache keep what they carry."""

import msgspec

from runtime.cache_messages import GetCache
from runtime.messages import FromScheduler, ToScheduler
from tests.testing.cache_views import small_view


def test_the_question_survives_the_wire() -> None:
    data = msgspec.msgpack.encode(GetCache(9, 1000))

    assert msgspec.msgpack.decode(data, type=ToScheduler) == GetCache(9, 1000)


def test_a_view_of_the_cache_survives_the_wire() -> None:
    view = small_view()
    data = msgspec.msgpack.encode(view)

    assert msgspec.msgpack.decode(data, type=FromScheduler) == view
    assert view.spans[0].points[1].pins == 1
