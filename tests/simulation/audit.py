"""What the caches of an engine must be, looked at between two steps."""

from collections import Counter, deque

from mem_cache.errors import IntegrityError
from mem_cache.tree.core.binding import FLAG_ASIDE
from runtime.scheduler.integrity import check_locks
from runtime.scheduler.replica import Replica
from runtime.scheduler.request import Status
from runtime.tokenizer.manager import TokenizerManager
from tests.simulation.engine import Engine
from tests.simulation.mirror import Mirror
from tests.simulation.network import Memory
from tests.simulation.pipes import Violation
from tests.simulation.recurrence import BAD, RING, Positions

Path = tuple[int, ...]
MOST_PATHS = 20_000


def check_sets(engine: Engine) -> None:
    """Demand what is cheap: each request stands in one place, and holds what that place has."""
    for replica in engine.scheduler.replicas:
        sets, residency = replica.sets, replica.residency
        running = sets.running
        places = [*(r.id for r in sets.waiting), *(r.id for r in running)]
        places += [r.id for r in sets.suspended]
        demand(sorted(places) == sorted(sets.by_id), "a request stands in no set, or in two")
        rested = [(r.row, r.matched, r.committed, r.scheduled) for r in sets.waiting]
        demand(set(rested) <= {(-1, 0, 0, 0)}, "a request that waits holds something")
        rows = {request.row for request in running}
        demand(len(rows) == len(running) and -1 not in rows, "two requests have one row")
        free = residency.table.rows - residency.table.free
        demand(residency.rows_used == len(running) == free, "rows are lost, or used twice")
        demand(residency._lent_points == 0, "a point is lent, and nothing is copied from it")
        for request in running:
            if replica.in_flight is None:
                request.check()
            page = residency.spec.page_size
            demand(request.holding.num_pages * page >= request.committed, "a row lacks a page")
        computing = {r.id for r in (*sets.waiting, *sets.prefills) if r.prefixes}
        pending = sets.pending._of.keys() - {r.id for r in sets.suspended}
        demand(pending == computing, "prefixes in the making are not those of requests")
        demand(
            sets.waiting.uncached_tokens == sum(sets.waiting._uncached.values()),
            "the tokens of those that wait do not add up",
        )
    held = Counter(r.share.name for r in engine.requests if r.row >= 0)
    shares = engine.scheduler.replicas[0].sets.shares
    demand(+held == +shares._running, f"shares count {shares._running}, there are {held}")
    waits = Counter(r.share.name for r in engine.requests if r.status is Status.WAITING)
    demand(+waits == +shares._waiting, f"shares count {shares._waiting} waiting, not {waits}")


def check_manager(manager: TokenizerManager) -> None:
    """Demand that the manager counts what there is, and has nothing of calls that are gone."""
    groups = manager._groups
    demand(manager._arriving == sum(g.arriving for g in groups), "calls to be sent are miscounted")
    runs = {c.request_id for g in groups if g.error is None for c in g.running}
    demand(runs <= manager._running.keys(), "a choice runs that the manager does not know")
    known = {group for group, _ in manager._running.values()}
    demand(known <= groups.keys(), "the manager runs a call that is gone")
    demand(set(manager._labels.values()) <= groups.keys(), "the label of a call stays")
    busy = bool(manager.in_flight or manager._bundles)
    demand(manager._idle.is_set() != busy, "the manager takes itself for idle, or busy")
    queued = manager._queued
    demand(queued._unread_tokens == sum(queued._unread), "tokens to be read are miscounted")


def demand(right: bool, fault: str) -> None:
    """Raise Violation unless something is right."""
    if not right:
        raise Violation(fault)


class Paths:
    """What the network computes for sequences, remembered by whole sequence."""

    def __init__(self, engine: Engine) -> None:
        self._spec = engine.spec
        self._known: dict[Path, tuple[Positions, list[int]]] = {}

    def end(self, path: Path, above: Path) -> tuple[Positions, list[int]]:
        """Return what is known at the end of a path, and the records of what it adds to `above`."""
        found = self._known.get(path)
        if found is None:
            if len(self._known) > MOST_PATHS:
                self._known.clear()
            at = self.end(above, ())[0].copy() if above else Positions(self._spec)
            found = at, [at.advance(token) for token in path[len(above) :]]
            self._known[path] = found
        return found


class Audit:
    """Looks at everything. Raises Violation."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._paths = Paths(engine)

    def check(self) -> None:
        """Check tree, pools, points, events and what the pools hold."""
        engine = self._engine
        parts = zip(
            engine.scheduler.replicas, engine.networks, engine.mirrors, engine.rotten, strict=True
        )
        for replica, network, mirror, rotten in parts:
            residency = replica.residency
            full, swa, states = residency.references(replica.sets.running)
            try:
                checks = residency.cache.check_in_steps(full=full, swa=swa, states=states)
                deque(checks, maxlen=0)
                check_locks(residency, replica.sets.running)
            except IntegrityError as fault:
                raise Violation(f"the cache is not sound: {fault}") from fault
            # The last token of an answer may be in the step in flight: nobody has seen it yet.
            unseen = replica.in_flight is not None and not all(r.finite for r in network.rows)
            paths = self._check_pages(replica, network.memory, rotten, unseen=unseen)
            self._check_points(replica, network.memory, paths, unseen=unseen)
            if engine.world.reuse:
                self._check_events(replica, mirror, paths)

    def _check_pages(
        self, replica: Replica, memory: Memory, rotten: set[int], *, unseen: bool
    ) -> dict[int, tuple[int, Path]]:
        """Compare the pages of a tree; return root and path of all nodes that can be matched."""
        arrays = replica.residency.cache.arrays
        parent, length = arrays.page("parent"), arrays.page("length")
        number, units = arrays.page("number"), arrays.unit
        nodes = [n for n in parent.nonzero()[0].tolist() if n]
        nodes.sort(key=number.__getitem__)
        paths: dict[int, tuple[int, Path]] = {}
        for node in nodes:
            above, count = int(parent[node]), int(length[node])
            if arrays.flags[node] & FLAG_ASIDE or (above > 0 and above not in paths):
                continue
            root, before = paths[above] if above > 0 else (above, ())
            path = (*before, *arrays.tokens[node, :count].tolist())
            paths[node] = root, path
            right, unit = self._paths.end(path, before)[1], int(units[node])
            held = memory.records[unit, :count].tolist()
            if held != right:
                excused = unit in rotten or unseen
                what = "not finite" if BAD in held else "of another prefix"
                if not (BAD in held and excused):
                    raise Violation(f"page {unit} of the tree is {what}: {len(path)} tokens")
        rotten.intersection_update(int(units[node]) for node in nodes)
        return paths

    def _check_points(
        self,
        replica: Replica,
        memory: Memory,
        paths: dict[int, tuple[int, Path]],
        *,
        unseen: bool,
    ) -> None:
        """Compare windows and states of resume points, but for those that are still copied."""
        residency, spec = replica.residency, replica.residency.spec
        arrays, copies = residency.cache.arrays, residency._copies
        on_way = {target for _, target in copies.swa}, {t for _, t, _ in copies.states}
        holder, at = arrays.point("holder"), arrays.point("position")
        for point in at.nonzero()[0].tolist():
            node, position = int(holder[point]), int(at[point])
            if node not in paths:
                continue
            path = paths[node][1][:position]
            page = spec.page_size
            right = self._paths.end(path, path[: (position - 1) // page * page])[0]
            exact, held, wanted = int(arrays.exact[point]), list[int](), list[int]()
            window, state = arrays.windows[point], int(arrays.point("state")[point])
            low = max(0, position - spec.window + exact)
            if spec.window and on_way[0].isdisjoint(window.tolist()):
                slots = memory.window_slots(window, low, position)
                held += [*memory.first[slots].tolist(), *memory.second[slots].tolist()]
                wanted += [*right.first[low - right.base :], *right.second[low - right.base :]]
            if spec.has_state and state not in on_way[1]:
                ring = memory.ring[state].tolist()
                reads = range(max(0, position - RING + exact), position)
                held += [ring[q % RING] for q in reads]
                wanted += [right.ring[q % RING] for q in reads]
            demand(held == wanted or (unseen and BAD in held), f"the point at {position} is wrong")

    def _check_events(
        self, replica: Replica, mirror: Mirror, paths: dict[int, tuple[int, Path]]
    ) -> None:
        """Compare what readers of events know with the whole pages that matches find."""
        replica.residency.flush_events()
        page = replica.residency.spec.page_size
        there = Counter(path for _, path in {*paths.values()} if len(path) % page == 0)
        told = Counter(mirror.known.values())
        if there != told:
            more, less = told - there, there - told
            raise Violation(f"events tell of {len(more)} pages too many, {len(less)} too few")
