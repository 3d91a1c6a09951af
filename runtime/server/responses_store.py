"""Responses that later requests continue, in the memory of this process.

A response stays until others need its place: at most `MAX_RESPONSES` are kept, in at most
`MAX_BYTES`, and the least recently used one goes first. There is no time limit, and nothing
survives a restart.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from runtime.errors import BadRequest, NotFound
from runtime.server.responses_items import Item

# An agent makes a few responses a minute: enough for days of one, or for an hour of a hundred.
MAX_RESPONSES = 4096
# A turn of 2,000 tokens takes about 20 KB, twice its text. Eight of the longest bodies fit.
MAX_BYTES = 256 << 20
# What the objects around the bytes of a response take, about.
_OVERHEAD_BYTES = 1024
_KEPT = "responses are kept in memory, the last used ones only, and do not survive a restart"


@dataclass(slots=True, eq=False)
class Stored:
    """One response.

    owner          the namespace of the cache that its request saw
    reply          the response object, as JSON
    added, output  items of this turn, as JSON: its input, and its answer
    item_ids       of the output
    previous       the response that it continues; it stays in memory as long as this one
    users          1 for the place in the store, and 1 for each response that continues it
    history_bytes  of the items of this response and of all before it
    """

    name: str
    owner: str
    reply: bytes
    added: bytes
    output: bytes
    item_ids: tuple[str, ...]
    previous: "Stored | None"
    users: int = 0
    size_bytes: int = field(init=False)
    history_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        items_bytes = len(self.added) + len(self.output)
        self.size_bytes = len(self.reply) + items_bytes + _OVERHEAD_BYTES
        earlier = 0 if self.previous is None else self.previous.history_bytes
        self.history_bytes = earlier + items_bytes


class ResponseStore:
    """The responses of a server, found by id, and their output items; each has one owner.

    total_bytes  of all responses in memory, those included that are only continued by others
    """

    def __init__(self, *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.total_bytes = 0
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._by_item: dict[str, Stored] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def get(self, name: str, owner: str) -> Stored:
        """Return a response of this owner, which counts as a use. Raises NotFound."""
        stored = self._stored.get(name)
        if stored is None or stored.owner != owner:
            text = f"there is no response {name[:80]!r}: {_KEPT}"
            raise NotFound(text, param="response_id", code="response_not_found")
        self._stored.move_to_end(name)
        return stored

    def put(
        self,
        name: str,
        owner: str,
        reply: bytes,
        *,
        added: Sequence[Item],
        output: Sequence[Item],
        previous: Stored | None,
    ) -> None:
        """Keep a response: its turn added the input `added` and `output` to those of `previous`."""
        ids = tuple(item.id for item in output if item.id is not None)
        encode = msgspec.json.encode
        stored = Stored(name, owner, reply, encode(added), encode(output), ids, previous)
        self._use(stored)
        self._stored[name] = stored
        self._by_item.update(dict.fromkeys(ids, stored))
        while len(self._stored) > self._max_responses or self.total_bytes > self._max_bytes:
            self._drop(next(iter(self._stored)))

    def delete(self, name: str, owner: str) -> None:
        """Forget a response; those that continue it still can be continued. Raises NotFound."""
        self.get(name, owner)
        self._drop(name)

    def resolve(self, items: Sequence[Item], owner: str) -> list[Item]:
        """Return `items` with those they refer to. Raises BadRequest for an unknown reference."""
        turns: dict[str, dict[str | None, Item]] = {}
        found = list(items)
        for number, item in enumerate(items):
            if item.kind == "item_reference":
                found[number] = self._referred(item, owner, turns, f"input[{number}]")
        return found

    def check(self) -> None:
        """Raise AssertionError unless the counts are those of what is kept."""
        kept = {id(one): one for leaf in self._stored.values() for one in _chain(leaf)}
        assert self.total_bytes == sum(one.size_bytes for one in kept.values())
        assert set(map(id, self._by_item.values())) <= set(map(id, self._stored.values()))
        for one in kept.values():
            continued = sum(other.previous is one for other in kept.values())
            assert one.users == continued + (self._stored.get(one.name) is one)

    def _referred(
        self, item: Item, owner: str, turns: dict[str, dict[str | None, Item]], where: str
    ) -> Item:
        name = item.id or ""
        stored = self._by_item.get(name)
        if stored is None or stored.owner != owner:
            text = f"{where}: there is no item {name[:80]!r}: {_KEPT}"
            raise BadRequest(text, param="input", code="item_not_found")
        self._stored.move_to_end(stored.name)
        if stored.name not in turns:
            turns[stored.name] = {one.id: one for one in _items(stored.output)}
        return turns[stored.name][name]

    def _use(self, stored: Stored) -> None:
        """Count one user more; a response may have been dropped while its continuation was made."""
        used: Stored | None = stored
        while used is not None:
            used.users += 1
            if used.users > 1:
                break
            self.total_bytes += used.size_bytes
            used = used.previous

    def _drop(self, name: str) -> None:
        stored = self._stored.pop(name)
        for item_id in stored.item_ids:
            if self._by_item.get(item_id) is stored:
                del self._by_item[item_id]
        unused: Stored | None = stored
        while unused is not None:
            unused.users -= 1
            if unused.users:
                break
            self.total_bytes -= unused.size_bytes
            unused = unused.previous


def history(stored: Stored | None) -> list[Item]:
    """Return the items of a response and of all before it, in order.

    Takes long, meant for a thread where there are many `history_bytes`.
    """
    turns = reversed(list(_chain(stored)))
    return [item for one in turns for part in (one.added, one.output) for item in _items(part)]


def _chain(stored: Stored | None) -> Iterator[Stored]:
    while stored is not None:
        yield stored
        stored = stored.previous


def _items(encoded: bytes) -> list[Item]:
    return msgspec.json.decode(encoded, type=list[Item])
