"""Slowloris and idle connections: a new one finds a place, and no running request loses its own."""

from runtime.server.open_connections import PROBES, OpenConnections, most_connections


class Connection:
    """A connection that only remembers that it was closed."""

    def __init__(self, *, unread: bool = False) -> None:
        self.unread = unread
        self.closed = False

    def abandon(self) -> bool:
        if not self.unread:
            self.closed = True
        return not self.unread

    def unread_bytes(self) -> int:
        return int(self.unread)

    def give_up(self) -> None:
        self.closed = True


def opened(connections: OpenConnections, count: int) -> list[Connection]:
    made = [Connection() for _ in range(count)]
    assert all(connections.add(one) for one in made)
    return made


def test_the_connection_that_has_waited_longest_is_closed_for_a_new_one() -> None:
    connections = OpenConnections(3)
    first, second, third = opened(connections, 3)
    connections.set_busy(first)
    connections.set_idle(second)  # after its answer

    more = opened(connections, 2)

    assert [one.closed for one in (first, second, third)] == [False, True, True]
    assert not any(one.closed for one in more)
    assert connections.closed_for_others == 2


def test_a_reply_that_is_being_read_is_not_cut_off() -> None:
    connections = OpenConnections(2)
    reading = Connection(unread=True)
    connections.add(reading)
    [idle] = opened(connections, 1)

    opened(connections, 1)

    assert not reading.closed
    assert idle.closed


def test_while_all_have_requests_a_few_more_may_ask_for_health() -> None:
    connections = OpenConnections(2)
    for one in opened(connections, 2):
        connections.set_busy(one)

    probes = [Connection() for _ in range(PROBES + 3)]
    for one in probes:
        assert not connections.add(one)
        connections.set_busy(one)

    assert [one.closed for one in probes] == [False] * PROBES + [True] * 3


def test_a_closed_connection_gives_its_place_back() -> None:
    connections = OpenConnections(1)
    for _ in range(3):
        [one] = opened(connections, 1)
        connections.set_busy(one)
        connections.remove(one)
        connections.set_idle(one)

    assert connections.closed_for_others == 0


def test_there_are_fewer_connections_than_files() -> None:
    assert most_connections(1088, None) > 1088
    assert most_connections(1088, 1 << 16) == most_connections(1088, None)
    assert 1 <= most_connections(1088, 1024) < 1024
    assert most_connections(1088, 100) >= 1
