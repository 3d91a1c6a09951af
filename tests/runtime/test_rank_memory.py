"""What is told of a rank's memory keeps its numbers, among other notes, too."""

import msgspec

from runtime.profile_messages import Profiled
from runtime.rank_memory import RankMemory


def test_memory_is_told_apart_from_other_notes() -> None:
    memory = RankMemory(1, 2, 3, 4, 5, 6, 7)

    data = msgspec.json.encode(memory)

    assert msgspec.json.decode(data, type=RankMemory | Profiled) == memory
