"""Verifies everything that must hold in a tree, its lists and its three pools.

Nothing here relies on what it checks: it reads the arrays, counts anew, and follows every link.
The core is only asked to hash tokens, and to find each page and each point again by its tokens,
once the links that it follows are known to be sound. Arrays are compared whole; only lists,
branches and points are walked. A large tree takes seconds, so that all of it is done in steps.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mem_cache.allocator import PageAllocator
from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from mem_cache.tree.arrays import TreeArrays
from mem_cache.tree.core.binding import (
    FLAG_ASIDE,
    FLAG_FORKED,
    FLAG_SUPERSEDED,
    SAVE_CLASSES,
    address,
    library,
)

Held = tuple[Counter[int], Counter[int], Counter[int]]
Pools = tuple[PageAllocator, PageAllocator, PageAllocator]

# Of a root that no namespace has, all are 0.
_ROOT_COUNTS = ("child", "children", "locks", "heads", "pages", "tokens")
# Pages that one step looks at: some 10 ms.
STEP_PAGES = 4096
STEP_NAMESPACES = 256


def check_in_steps(
    spec: TreeSpec,
    arrays: TreeArrays,
    roots: dict[str, int],
    *,
    locks: int,
    held: Held,
    pools: Pools,
) -> Iterator[None]:
    """Verify every invariant of tree, lists, locks and pools, and pause every 10 ms.

    locks  locks that were handed out and not released
    held   references that others than the tree hold, by unit: full pages, SWA pages, states
    Nothing may change in a pause. Raises IntegrityError naming the page, point or list.
    """
    checker = _Checker(spec, arrays, roots, np.flatnonzero(arrays.page("parent")))
    checker.check_ranges(*(pool.capacity for pool in pools))
    yield from checker.check_pages()
    yield from checker.check_siblings()
    yield from checker.check_locks(locks)
    yield from checker.check_page_lists()
    checker.check_points()
    checker.check_point_lists()
    yield
    checker.check_numbers()
    checker.check_references(held, pools)


def _demand(right: bool | np.bool_, fault: str) -> None:
    if not right:
        raise IntegrityError(fault)


@dataclass(frozen=True, slots=True)
class _Checker:
    """pages  nodes of all pages in the tree."""

    spec: TreeSpec
    arrays: TreeArrays
    roots: dict[str, int]
    pages: np.ndarray

    def check_ranges(self, full_pages: int, swa_pages: int, states: int) -> None:
        """Each link names something that there is, so that following it is safe."""
        a = self.arrays
        pages, most_points = a.node_ids.capacity, a.point_ids.capacity
        leaves = a.roots["leaves"]
        tries = (a.page("split_low"), a.page("split_high"), a.page("child"), a.roots["child"])
        places = (*a.page_links(), *a.root_links(), a.point("holder"))
        ends = (a.page_lists["oldest"], a.page_lists["newest"], leaves["oldest"], leaves["newest"])
        chains = (*a.point_links(), a.point("below"), a.point("chain"), a.page("point"), a.buckets)
        points = (*chains, a.point_lists["oldest"], a.point_lists["newest"])
        for what, arrays, least, most in (
            ("parent", (a.page("parent"),), -len(a.roots), pages),
            ("page or branch", tries, -pages, pages),
            ("page", (*places, *ends, a.node_of), 0, pages),
            ("resume point", (*points, a.point_of), 0, most_points),
            ("full page", (a.unit,), 0, full_pages),
            ("SWA page", (a.windows,), 0, swa_pages),
            ("state", (a.point("state"),), 0, states),
            ("kind of page", (a.kind,), 0, len(a.page_lists) - 1),
            ("kind of point", (a.point_kind,), 0, len(a.uses) - 1),
            ("class of point", (a.point_saves,), 0, SAVE_CLASSES - 1),
        ):
            for array in arrays:
                low, high = int(array.min(initial=0)), int(array.max(initial=0))
                _demand(low >= least, f"a link names {what} {low}, below {least}")
                _demand(high <= most, f"a link names {what} {high}, above {most}")

    def check_numbers(self) -> None:
        """Nodes and full pages know each other, as points and states do; the rest is free."""
        a, position = self.arrays, self.arrays.point("position")
        alive = np.flatnonzero(position)
        for what, ids, used, units, back in (
            ("page", a.node_ids, self.pages, a.unit, a.node_of),
            ("point", a.point_ids, alive, a.point("state"), a.point_of),
        ):
            ids.check(np.bincount(used, minlength=ids.capacity + 1))
            idle = np.ones(len(units), np.bool_)
            idle[used] = False
            _demand(not units[idle].any(), f"a {what} that is not there has a unit")
            if what == "point" and not self.spec.has_state:
                _demand(not (units.any() or back.any()), "a point has a state, the model none")
                continue
            wrong = (units[used] == 0) | (back[units[used]] != used)
            _demand(not wrong.any(), f"the unit of {what} {used[wrong][:1]} is not known as its")
            _demand(np.count_nonzero(back) == len(used), f"a unit is known as that of a {what}")

    def check_pages(self) -> Iterator[None]:
        """Each page follows a whole one of its namespace, and the counts agree."""
        a, ids, size = self.arrays, self.pages, self.spec.page_size
        parent, number, root = a.page("parent")[ids], a.page("number")[ids], a.page("root")[ids]
        length = a.page("length")[ids]
        _demand(a.tree.pages == len(ids), f"{len(ids)} pages in the tree, {a.tree.pages} counted")
        below, above = parent > 0, parent[parent > 0]
        self._each(below & (a.page("parent")[parent * below] == 0), "follows one that is not there")
        self._each((length < 1) | (length > size), "has an impossible length")
        gap = np.zeros(len(ids), np.bool_)
        gap[below] = a.page("length")[above] != size
        self._each(gap, "follows a partial one")
        gap[below] = a.page("number")[above] + 1 != number[below]
        gap[~below] = number[~below] != 0
        self._each(gap, "has the wrong number")
        gap[below] = a.page("root")[above] != root[below]
        gap[~below] = -1 - parent[~below] != root[~below]
        self._each(gap, "is in two namespaces")
        self._each(~np.isin(root, list(self.roots.values())), "is in no namespace")
        count = np.bincount(above, minlength=len(a.stamp))
        self._each(count[ids] != a.page("children")[ids], "has a wrong number of children")
        forked = a.flags[ids] & FLAG_FORKED != 0
        self._each((count[ids] > 1) & ~forked, "does not know that it forked")
        for first in range(0, len(ids), STEP_PAGES):
            yield
            self._check_tokens(ids[first : first + STEP_PAGES])
        names, most = list(self.roots.values()), len(a.roots)
        tokens = np.bincount(root, weights=length, minlength=most).astype(np.int64)
        tops = np.bincount(-1 - parent[~below], minlength=most)
        found = np.stack((np.bincount(root, minlength=most), tokens, tops), 1)[names]
        told = np.stack([a.roots[field] for field in ("pages", "tokens", "children")], 1)[names]
        for nth in np.flatnonzero((found != told).any(1)).tolist():
            counts = f"has (pages, tokens, children) {tuple(found[nth].tolist())}"
            raise IntegrityError(f"namespace {list(self.roots)[nth]!r} {counts}")
        unused = np.delete(a.roots, list(self.roots.values()))
        empty = all(not unused[field].any() for field in _ROOT_COUNTS)
        _demand(empty, "a root holds pages and has no name")

    def _check_tokens(self, pages: np.ndarray) -> None:
        """Each page has as many tokens as it says, and a whole one the trail of these."""
        a, add = self.arrays, library().trail_add
        parent, trail, size = a.page("parent"), a.trail, self.spec.page_size
        length = a.page("length")[pages]
        valid = (a.tokens[pages] >= 0) == (np.arange(size)[None, :] < length[:, None])
        self._each(~valid.all(axis=1), "has tokens that do not end where it does", pages)
        wrong = np.zeros(len(pages), np.bool_)
        tokens = address(a.tokens)
        for i in np.flatnonzero(length == size).tolist():
            page = int(pages[i])
            above = int(parent[page])
            before = int(trail[above]) if above > 0 else 1 - above
            wrong[i] = trail[page] != add(before, tokens + page * size * a.tokens.itemsize, size)
        self._each(wrong, "has another trail than its tokens", pages)

    def _each(self, wrong: np.ndarray, fault: str, pages: np.ndarray | None = None) -> None:
        """Fail if something is wrong with one of `pages`, by default all."""
        if wrong.any():
            page = (self.pages if pages is None else pages)[wrong.argmax()]
            raise IntegrityError(f"page {self._path(int(page))} {fault}")

    def _path(self, page: int) -> str:
        parent = self.arrays.page("parent")
        path, seen = [page], {page}
        while path[-1] > 0 and int(parent[path[-1]]) not in seen:
            path.append(int(parent[path[-1]]))
            seen.add(path[-1])
        return " < ".join(map(str, path[:9])) + (" < ..." if len(path) > 9 else "")

    def check_siblings(self) -> Iterator[None]:
        """Each page is found by its tokens, and each branch of the tries stands where it must."""
        a, core = self.arrays, library()
        parent, flags, tokens = a.page("parent"), a.flags, address(a.tokens)
        stride = self.spec.page_size * a.tokens.itemsize
        tops = [(-1 - root, int(a.roots["child"][root])) for root in self.roots.values()]
        nodes = self.pages[a.page("child")[self.pages] != 0]
        tries = tops + list(zip(nodes.tolist(), a.page("child")[nodes].tolist(), strict=True))
        found: list[int] = []
        bearers: list[int] = []
        for node, trie in tries:
            for page in self._leaves(trie, bearers):
                found.append(page)
                if len(found) % STEP_PAGES == 0:
                    yield
                _demand(parent[page] == node, f"page {page} stands below {node}, not its parent")
                nearest = core.siblings_nearest(a.pointer, trie, tokens + page * stride)
                _demand(nearest == page, f"page {page} is not found by its tokens, {nearest} is")
        known = self.pages[flags[self.pages] & FLAG_ASIDE == 0].tolist()
        _demand(sorted(found) == known, "a page stands below nobody, or twice, or is set aside")
        _demand(len(set(bearers)) == len(bearers), "a page bears two branches")
        superseded = self.pages[flags[self.pages] & FLAG_SUPERSEDED != 0]
        free = superseded[a.page("locks")[superseded] == 0]
        _demand(not len(free), f"superseded pages {free.tolist()} stay without a lock")

    def _leaves(self, trie: int, bearers: list[int]) -> Iterator[int]:
        """Go through the pages of a trie; a branch deeper down must look at a later bit."""
        a, bits = self.arrays, 32 * self.spec.page_size
        split_at, low, high = a.page("split_at"), a.page("split_low"), a.page("split_high")
        stack = [(trie, -1)] if trie else []
        while stack:
            reference, above = stack.pop()
            if reference > 0:
                yield reference
                continue
            bearer = -reference
            at = int(split_at[bearer])
            _demand(at > above, f"branch of page {bearer} looks at bit {at} below bit {above}")
            _demand(at < bits, f"branch of page {bearer} looks at bit {at}")
            bearers.append(bearer)
            stack.append((int(low[bearer]), at))
            stack.append((int(high[bearer]), at))

    def check_locks(self, locks: int) -> Iterator[None]:
        """Locks and pins are those handed out; exactly what they protect is guarded."""
        a, ids = self.arrays, self.pages
        counts, parent = a.page("locks"), a.page("parent")
        total = int(counts[ids].sum() + a.roots["locks"].sum())
        _demand(total == locks + a.tree.pins_held, f"{total} locks are counted, {locks} are held")
        guards = np.zeros(len(a.stamp), np.int32)
        guards[ids] = counts[ids] > 0
        for nth, page in enumerate(ids[np.argsort(-a.page("number")[ids])].tolist()):
            if guards[page] and parent[page] > 0:
                guards[parent[page]] += 1
            if nth % STEP_PAGES == 0:
                yield
        self._each(guards[ids] != a.page("guards")[ids], "is not guarded as its locks demand")
        guarded = int((guards[ids] > 0).sum())
        _demand(guarded == a.tree.guarded, f"{guarded} pages are guarded")

    def check_page_lists(self) -> Iterator[None]:
        """Exactly the pages that may be evicted stand in lists, each in its own, by age."""
        a, ids = self.arrays, self.pages
        free = (a.page("locks")[ids] == 0) & (a.page("children")[ids] == 0)
        leaves, kind, root = ids[free], a.kind, a.page("root")
        for index in _used(a.page_lists, kind[leaves]):
            wanted = sorted(leaves[kind[leaves] == index].tolist())
            name = f"list of pages of kind {index}"
            listed = _walk(name, a.page_lists[index], a.page_links())
            _demand(sorted(listed) == wanted, f"list {index} has pages {listed}, not {wanted}")
            ages = a.stamp[listed]
            _demand(bool((ages[1:] >= ages[:-1]).all()), f"list {index} is not in order of use")
            yield
        leaves = leaves[np.argsort(root[leaves], kind="stable")]
        bounds = np.searchsorted(root[leaves], np.arange(len(a.roots) + 1)).tolist()
        for nth, (name, index) in enumerate(self.roots.items()):
            wanted = leaves[bounds[index] : bounds[index + 1]].tolist()
            listed = _walk(f"list of {name!r}", a.roots["leaves"][index], a.root_links())
            _demand(sorted(listed) == wanted, f"list of {name!r} has pages {listed}, not {wanted}")
            if nth % STEP_NAMESPACES == 0 or len(listed) > STEP_PAGES:
                yield

    def check_points(self) -> None:
        """Each point hangs on the page with its last token, once, and is found by its tokens."""
        a, size = self.arrays, self.spec.page_size
        position, holder, below = a.point("position"), a.point("holder"), a.point("below")
        alive = np.flatnonzero(position).tolist()
        _demand(len(alive) == a.tree.points, f"{len(alive)} points live, {a.tree.points} counted")
        hung, filled = list[int](), a.windows != 0
        for page in self.pages[a.page("point")[self.pages] != 0].tolist():
            point, deeper = int(a.page("point")[page]), 1 << 31
            start = int(a.page("number")[page]) * size
            while point:
                at = int(position[point])
                _demand(holder[point] == page, f"point {point} hangs on page {page} unknown to it")
                _demand(start < at < deeper, f"point {point} at {at} is out of order on {page}")
                end = start + int(a.page("length")[page])
                _demand(at <= end, f"point {point} is behind {page}")
                count = self.spec.window_pages_at(at)
                full = not filled[point, count:].any() and bool(filled[point, :count].all())
                _demand(full, f"point {point} at {at} has not {count} SWA pages")
                hung.append(point)
                point, deeper = int(below[point]), at
        _demand(sorted(hung) == alive, "a point lives that hangs nowhere")
        inside = [r for r in alive if position[r] % size]
        tabled = self._tabled()
        _demand(sorted(tabled) == inside, f"points {tabled} are in the table, not {inside}")
        for point in inside:
            if a.flags[holder[point]] & FLAG_ASIDE:
                continue
            found = library().point_find(a.pointer, int(holder[point]), int(position[point]))
            _demand(found == point, f"point {point} is not found by its tokens, {found} is")
        parents = a.page("parent")[holder[inside]]
        counted = np.bincount(parents[parents > 0], minlength=len(a.stamp))
        wrong = a.page("heads")[self.pages] != counted[self.pages]
        if wrong.any():
            raise IntegrityError(f"page {self.pages[wrong.argmax()]} miscounts its heads")
        heads = Counter(parents.tolist())
        for index in self.roots.values():
            _demand(a.roots["heads"][index] == heads[-1 - index], f"root {index}: heads")

    def _tabled(self) -> list[int]:
        buckets, chain = self.arrays.buckets, self.arrays.point("chain")
        points: list[int] = []
        for first in buckets[buckets != 0].tolist():
            point = first
            while point and len(points) <= len(chain):
                points.append(point)
                point = int(chain[point])
        return points

    def check_point_lists(self) -> None:
        """Exactly the unpinned points stand in lists, each in its own."""
        a = self.arrays
        position, pins = a.point("position"), a.point("pins")
        alive = np.flatnonzero(position)
        _demand(int(pins[alive].sum()) == a.tree.pins_held, "pins are miscounted")
        free = alive[pins[alive] == 0]
        by_kind = np.bincount(a.point_kind[alive], minlength=len(a.uses))
        counted = bool((by_kind == a.uses["points"]).all())
        _demand(counted, f"points of each kind are {by_kind.tolist()}, not as counted")
        place = a.point_kind.astype(np.int64) * SAVE_CLASSES + a.point_saves
        for index in _used(a.point_lists, place[free]):
            wanted = free[place[free] == index].tolist()
            name = f"list of points {index}"
            listed = _walk(name, a.point_lists[index], a.point_links())
            _demand(sorted(listed) == wanted, f"list {index} has points {listed}, not {wanted}")
            ages = a.point_stamp[listed]
            ordered = bool((ages[1:] >= ages[:-1]).all())
            _demand(ordered, f"list of points {index} is not in order of use")

    def check_references(self, held: Held, pools: Pools) -> None:
        """Every unit has the references of the tree and of those who hold it, and no other."""
        a = self.arrays
        alive = np.flatnonzero(a.point("position"))
        windows = a.windows[alive]
        states = a.point("state")[alive]
        units = (a.unit[self.pages], windows[windows != 0], states[states != 0])
        for pool, mine, others in zip(pools, units, held, strict=True):
            expected = np.bincount(mine, minlength=pool.capacity + 1)
            for unit, count in others.items():
                if not 0 <= unit <= pool.capacity:
                    raise IntegrityError(f"pool {pool.name}: no unit {unit} of {pool.capacity}")
                expected[unit] += count
            pool.check(expected)


def _used(lists: np.ndarray, kinds: np.ndarray) -> list[int]:
    """Return which lists have items, or should have some of these kinds: most have none."""
    used = np.zeros(len(lists), np.bool_)
    for field in ("oldest", "newest", "length"):
        used |= lists[field] != 0
    used[kinds] = True
    return np.flatnonzero(used).tolist()


def _walk(name: str, record: np.void, links: tuple[np.ndarray, np.ndarray]) -> list[int]:
    """Return the items of a list, oldest first; its links must agree in both directions."""
    newer, older = links
    items: list[int] = []
    item, before, length = int(record["oldest"]), 0, int(record["length"])
    while item and len(items) <= length:
        if older[item] != before:
            raise IntegrityError(f"{name}: {item} does not know {before} before it")
        items.append(item)
        item, before = int(newer[item]), item
    _demand(before == record["newest"], f"{name} does not end with {record['newest']}")
    _demand(len(items) == length, f"{name} of {length} has {len(items)} items")
    return items
