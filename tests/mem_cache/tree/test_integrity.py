"""Every array of the tree is broken, one entry at a time; the check must find it and name it."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from mem_cache.errors import IntegrityError
from mem_cache.spec import TreeSpec
from mem_cache.tree.core.binding import FLAG_FORKED, FLAG_SUPERSEDED
from tests.testing.dictionary_model import Rig

Break = Callable[["Tree"], object]


class Tree:
    """Three sequences that part at 4, with points, one lock and one pin; and names for the parts.

    top [0, 4) points 3, 4    locked [4, 8) points 6, 8, both held    loose [4, 8)    tail [8, 10)
    short [4, 6)
    """

    def __init__(self) -> None:
        spec = TreeSpec(page_size=4, swa_page_size=2, window=4)
        self.rig = Rig(spec, full=20, swa=20, states=9, reverse_numbers=False)
        # So that neither pages and nodes nor states and points have the same numbers.
        self.rig.full.take()
        self.rig.states.take()
        self.cache, self.arrays = self.rig.cache, self.rig.cache.arrays
        self.top, self.locked = self.complete([0, 1, 2, 3, 4, 5, 6, 7], 3, 4, 6, 8)
        self.loose, self.tail = self.complete([0, 1, 2, 3, 9, 9, 9, 9, 9, 9])[1:]
        self.short = self.complete([0, 1, 2, 3, 9, 8])[1]
        self.lock = self.cache.lock(self.rig.match([0, 1, 2, 3, 4, 5, 6, 7, 8]))
        self.root = self.arrays.roots[self.cache.roots[""] :][:1]

    def complete(self, tokens: list[int], *points: int) -> list[int]:
        """Run a request and return the nodes of its pages."""
        return self.arrays.node_of[self.rig.complete(tokens, *points)].tolist()

    def point(self, position: int) -> int:
        """Return the number of the point at a position."""
        return int(np.flatnonzero(self.arrays.point("position") == position)[0])

    def check(self) -> None:
        """Check with nothing held by anyone but the tree, and what was taken first."""
        self.cache.check(full=Counter((1,)), swa=Counter(), states=Counter((1,)))


def _page(name: str, part: str, value: int) -> Break:
    """Set what an array says of a page."""

    def apply(tree: Tree) -> None:
        known = name in tree.arrays.words
        array = tree.arrays.page(name) if known else getattr(tree.arrays, name)
        array[getattr(tree, part)] = value

    return apply


def _point(name: str, position: int, value: int) -> Break:
    """Set what an array says of a point."""

    def apply(tree: Tree) -> None:
        known = name in tree.arrays.point_words
        array = tree.arrays.point(name) if known else getattr(tree.arrays, name)
        array[tree.point(position)] = value

    return apply


def _root(name: str, value: int) -> Break:
    def apply(tree: Tree) -> None:
        tree.root[name] = value

    return apply


def _list(which: str, name: str, value: int, kind: int = 0) -> Break:
    def apply(tree: Tree) -> None:
        getattr(tree.arrays, which)[name][kind] = value

    return apply


def _lose_a_list(which: str) -> Break:
    def apply(tree: Tree) -> None:
        for name in ("oldest", "newest", "length"):
            getattr(tree.arrays, which)[name][0] = 0

    return apply


def _link(which: str, end: int, part: str, value: int) -> Break:
    def apply(tree: Tree) -> None:
        item = tree.point(int(part)) if part.isdigit() else getattr(tree, part)
        getattr(tree.arrays, which)()[end][item] = value

    return apply


def _count(name: str, value: int) -> Break:
    return lambda tree: setattr(tree.arrays.tree, name, value)


def _swap_trail(tree: Tree) -> None:
    tree.arrays.trail[tree.loose] += 1


def _twice_below(tree: Tree) -> None:
    tree.arrays.page("child")[tree.loose] = tree.short


def _no_leaves_below(tree: Tree) -> None:
    tree.arrays.page("child")[tree.loose] = 0


def _swap_halves(tree: Tree) -> None:
    bearer = -int(tree.arrays.page("child")[tree.top])
    low, high = tree.arrays.page("split_low"), tree.arrays.page("split_high")
    low[bearer], high[bearer] = int(high[bearer]), int(low[bearer])


def _branch_on_itself(tree: Tree) -> None:
    bearer = -int(tree.arrays.page("child")[tree.top])
    tree.arrays.page("split_low")[bearer] = -bearer


def _branch_on_bit(bit: int) -> Break:
    def apply(tree: Tree) -> None:
        bearer = -int(tree.arrays.page("child")[tree.top])
        tree.arrays.page("split_at")[bearer] = bit

    return apply


def _points_in_a_circle(tree: Tree) -> None:
    tree.arrays.point("below")[tree.point(6)] = tree.point(8)


def _table_in_a_circle(tree: Tree) -> None:
    tree.arrays.point("chain")[tree.point(3)] = tree.point(3)


def _move_to_another_bucket(tree: Tree) -> None:
    buckets, point = tree.arrays.buckets, tree.point(6)
    place = int(np.flatnonzero(buckets == point)[0])
    free = int(np.flatnonzero(buckets == 0)[0])
    buckets[place], buckets[free] = 0, point


def _pages_by_age_reversed(tree: Tree) -> None:
    tree.arrays.stamp[tree.arrays.page_lists["newest"][0]] = 0


def _points_by_age_reversed(tree: Tree) -> None:
    tree.arrays.point_stamp[tree.arrays.point_lists["newest"][0]] = 0


def _miscount_a_kind(tree: Tree) -> None:
    tree.arrays.uses["points"][0] += 1


def _forget_a_namespace(tree: Tree) -> None:
    tree.cache.roots[""] += 1


def _keep_a_page_of_nobody(tree: Tree) -> None:
    tree.arrays.roots["pages"][7] = 1


def _hang_the_tail_on_the_short_one(tree: Tree) -> None:
    tree.arrays.page("parent")[tree.tail] = tree.short


def _drop_a_reference(tree: Tree) -> None:
    tree.rig.swa.decref([int(tree.arrays.windows[tree.point(8), 0])])


def _swap_nodes(tree: Tree) -> None:
    node_of = tree.arrays.node_of
    node_of[2], node_of[3] = int(node_of[3]), int(node_of[2])


FAULTS: list[tuple[str, Break]] = [
    (r"a link names parent 21, above 20", _page("parent", "loose", 21)),
    (r"a link names parent -65, below -64", _page("parent", "loose", -65)),
    (r"page or branch -21, below -20", _page("child", "top", -21)),
    (r"page or branch 21, above 20", _page("split_low", "short", 21)),
    (r"page or branch 21, above 20", _page("split_high", "short", 21)),
    (r"page or branch 99", _root("child", 99)),
    (r"resume point 10, above 9", _page("point", "loose", 10)),
    (r"resume point -1, below 0", _point("below", 3, -1)),
    (r"resume point 10, above 9", _point("chain", 3, 10)),
    (r"resume point 10, above 9", _list("point_lists", "oldest", 10)),
    (r"a link names page 21, above 20", _point("holder", 3, 21)),
    (r"a link names page 21, above 20", _list("page_lists", "newest", 21)),
    (r"a link names page 21, above 20", _link("page_links", 0, "short", 21)),
    (r"a link names page -1, below 0", _link("root_links", 1, "short", -1)),
    (r"SWA page 21, above 20", _point("windows", 3, 21)),
    (r"kind of page 41, above 40", _page("kind", "top", 41)),
    (r"class of point 8, above 7", _point("point_saves", 8, 8)),
    (r"points of each kind are", _miscount_a_kind),
    (r"kind of point 200, above 46", _point("point_kind", 8, 200)),
    (r"5 pages in the tree, 6 counted", _count("pages", 6)),
    (r"4 pages in the tree, 5 counted", _page("parent", "tail", 0)),
    (r"page \d+ < \d+ < .* follows one that is not there", _page("parent", "tail", 9)),
    (r"page \d+ < \d+ < 1 < -1 follows a partial one", _hang_the_tail_on_the_short_one),
    (r"page \d+ < \d+ < \d+ < -1 has the wrong number", _page("number", "tail", 1)),
    (r"page 1 < -1 has the wrong number", _page("number", "top", 1)),
    (r"has an impossible length", _page("length", "tail", 0)),
    (r"has an impossible length", _page("length", "tail", 5)),
    (r"has tokens that do not end where it does", _page("length", "tail", 1)),
    (r"has tokens that do not end where it does", _page("tokens", "tail", -1)),
    (r"page \d+ < 1 < -1 is in two namespaces", _page("root", "locked", 1)),
    (r"is in two namespaces", _page("root", "top", 1)),
    (r"page 1 < -1 is in no namespace", _forget_a_namespace),
    (r"a root holds pages and has no name", _keep_a_page_of_nobody),
    (r"page 1 < -1 has a wrong number of children", _page("children", "top", 2)),
    (r"page 1 < -1 does not know that it forked", _page("flags", "top", 0)),
    (r"page \d+ < 1 < -1 has another trail", _swap_trail),
    (r"has another trail than its tokens", _page("tokens", "loose", 8)),
    (r"namespace '' has \(pages, tokens, children\)", _root("pages", 4)),
    (r"namespace '' has \(pages, tokens, children\)", _root("tokens", 4)),
    (r"namespace '' has \(pages, tokens, children\)", _root("children", 2)),
    (r"page \d+ stands below \d+, not its parent", _twice_below),
    (r"a page stands below nobody, or twice", _no_leaves_below),
    (r"page \d+ is not found by its tokens", _swap_halves),
    (r"looks at bit \d+ below bit \d+", _branch_on_itself),
    (r"branch of page \d+ looks at bit 128", _branch_on_bit(32 * 4)),
    (r"branch of page \d+ looks at bit 500", _branch_on_bit(500)),
    (r"superseded pages \[\d\] stay without a lock", _page("flags", "short", FLAG_SUPERSEDED)),
    (r"3 locks are counted, 1 are held", _page("locks", "top", 1)),
    (r"2 locks are counted, 2 are held", lambda t: setattr(t.cache, "locks", 2)),
    (r"3 locks are counted", _root("locks", 1)),
    (r"page \d+ < 1 < -1 is not guarded as its locks demand", _page("guards", "locked", 0)),
    (r"page 1 < -1 is not guarded as its locks demand", _page("guards", "top", 2)),
    (r"2 pages are guarded", _count("guarded", 3)),
    (r"list of pages of kind 0: \d+ does not know", _link("page_links", 1, "tail", 1)),
    (r"list of pages of kind 0 does not end with", _list("page_lists", "newest", 1)),
    (r"list of pages of kind 0 of \d has \d items", _list("page_lists", "length", 1)),
    (r"list of pages of kind 3 does not end with", _list("page_lists", "newest", 1, kind=3)),
    (r"list of pages of kind 3 of 2 has 0 items", _list("page_lists", "length", 2, kind=3)),
    (r"list of pages of kind 3 does not end with", _list("page_lists", "oldest", 1, kind=3)),
    (r"list 0 has pages \[\], not \[.*\]", _lose_a_list("page_lists")),
    (r"list 0 has pages \[.*\], not \[.*\]", _page("kind", "tail", 1)),
    (r"list 0 is not in order of use", _pages_by_age_reversed),
    (r"list of '': \d+ does not know", _link("root_links", 1, "tail", 1)),
    (r"4 points live, 5 counted", _count("points", 5)),
    (r"3 points live, 4 counted", _point("position", 8, 0)),
    (r"point \d hangs on page \d+ unknown to it", _point("holder", 8, 1)),
    (r"point \d at 8 is out of order", _points_in_a_circle),
    (r"point \d at 6 is out of order", _point("position", 8, 5)),
    (r"point \d is behind \d", _point("position", 8, 9)),
    (r"point \d at 2 has not 1 SWA pages", _point("position", 3, 2)),
    (r"point \d at 8 has not 2 SWA pages", _point("windows", 8, 0)),
    (r"a point lives that hangs nowhere", _page("point", "top", 0)),
    (r"points \[.*\] are in the table, not \[", _table_in_a_circle),
    (r"points \[.*\] are in the table, not \[", lambda t: t.arrays.buckets.fill(0)),
    (r"point \d is not found by its tokens, 0 is", _move_to_another_bucket),
    (r"point \d is not found by its tokens, 0 is", _point("position", 6, 7)),
    (r"page 1 miscounts its heads", _page("heads", "top", 0)),
    (r"root 0: heads", _root("heads", 0)),
    (r"pins are miscounted", _point("pins", 6, 1)),
    (r"list of points 0: \d does not know", _link("point_links", 1, "6", 8)),
    (r"list 0 has points \[\], not \[\d", _lose_a_list("point_lists")),
    (r"list 0 has points", _point("point_saves", 6, 1)),
    (r"list of points 0 is not in order of use", _points_by_age_reversed),
    (r"pool full: unit 2", lambda t: t.rig.full.incref([t.arrays.unit[t.top]])),
    (r"pool full: unit", lambda t: t.rig.full.alloc(1)),
    (r"pool swa: unit", _drop_a_reference),
    (r"pool rings: unit", lambda t: t.rig.states.incref([t.point(6)])),
    (r"a link names full page 21, above 20", _page("unit", "tail", 21)),
    (r"a link names page 21, above 20", _page("node_of", "tail", 21)),
    (r"a link names state 10, above 9", _point("state", 8, 10)),
    (r"a link names resume point 10, above 9", _point("point_of", 8, 10)),
    (r"the unit of page \[\d\] is not known as its", _page("unit", "tail", 2)),
    (r"the unit of page \[\d\] is not known as its", _page("unit", "tail", 0)),
    (r"the unit of page \[1\] is not known as its", _swap_nodes),
    (r"a unit is known as that of a page", lambda t: t.arrays.node_of.__setitem__(19, 1)),
    (r"a page that is not there has a unit", lambda t: t.arrays.unit.__setitem__(19, 19)),
    (r"the unit of point \[\d\] is not known as its", _point("state", 8, 2)),
    (r"a unit is known as that of a point", lambda t: t.arrays.point_of.__setitem__(9, 1)),
    (r"pool nodes: unit", lambda t: t.arrays.node_ids.take()),
    (r"pool points: unit", lambda t: t.arrays.point_ids.take()),
]


def test_a_sound_tree_passes() -> None:
    tree = Tree()
    assert tree.arrays.flags[tree.top] == FLAG_FORKED

    tree.check()
    tree.cache.unlock(tree.lock)
    tree.check()


@pytest.mark.parametrize(
    ("text", "apply"), FAULTS, ids=[f"{i}-{text}" for i, (text, _) in enumerate(FAULTS)]
)
def test_a_broken_invariant_is_found_and_named(text: str, apply: Break) -> None:
    tree = Tree()

    apply(tree)

    with pytest.raises(IntegrityError, match=text):
        tree.check()


WORDS = ("length", "number", "parent", "root", "children", "heads", "point", "locks", "guards")


@pytest.mark.parametrize("value", [-(2**31), -3, -1, 0, 1, 2, 3, 7, 2**31 - 1])
@pytest.mark.parametrize("name", WORDS)
def test_no_word_of_a_page_can_be_wrong_unnoticed(name: str, value: int) -> None:
    tree = Tree()
    array = tree.arrays.page(name)
    for page in (tree.top, tree.locked, tree.loose, tree.tail, tree.short):
        before = int(array[page])
        array[page] = value

        if before != value:
            with pytest.raises(IntegrityError):
                tree.check()
        array[page] = before
    tree.check()


@pytest.mark.parametrize("value", [-(2**31), -1, 0, 1, 2, 5, 6, 12, 2**31 - 1])
@pytest.mark.parametrize("name", ["position", "holder", "below", "pins"])
def test_no_word_of_a_point_can_be_wrong_unnoticed(name: str, value: int) -> None:
    tree = Tree()
    array = tree.arrays.point(name)
    for position in (3, 4, 6, 8):
        state = tree.point(position)
        before = int(array[state])
        array[state] = value

        if before != value:
            with pytest.raises(IntegrityError):
                tree.check()
        array[state] = before
    tree.check()


def test_many_namespaces_are_counted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=900, swa=20, states=9)
    for nth in range(800):
        rig.complete([nth, 1, 2, 3], namespace=f"user {nth}")
    counted: list[int] = []
    count = np.bincount
    monkeypatch.setattr(np, "bincount", lambda *a, **k: counted.append(1) or count(*a, **k))

    parts = list(rig.cache.check_in_steps(full=Counter(), swa=Counter(), states=Counter()))

    assert len(counted) < 20
    assert 3 < len(parts) < 80
    rig.cache.arrays.roots["tokens"][rig.cache.roots["user 700"]] += 1
    with pytest.raises(IntegrityError, match=r"namespace 'user 700' has .*\(1, 4, 1\)"):
        rig.cache.check(full=Counter(), swa=Counter(), states=Counter())


def test_the_path_to_the_fault_is_told() -> None:
    tree = Tree()
    tree.arrays.page("children")[tree.tail] = 1

    with pytest.raises(IntegrityError) as fault:
        tree.check()

    assert str(fault.value).startswith(f"page {tree.tail} < {tree.loose} < {tree.top} < -1 has")


def test_a_path_that_never_ends_is_told_too() -> None:
    tree = Tree()
    tree.arrays.page("parent")[tree.top] = tree.loose

    with pytest.raises(IntegrityError, match="page"):
        tree.check()


def test_references_that_rows_hold_are_accounted_for() -> None:
    tree = Tree()
    top = int(tree.arrays.unit[tree.top])
    tree.rig.full.incref([top, top])
    tree.cache.check(full=Counter({top: 2, 1: 1}), swa=Counter(), states=Counter({1: 1}))

    with pytest.raises(IntegrityError, match="pool full: no unit 21 of 20"):
        tree.cache.check(full=Counter({21: 1}), swa=Counter(), states=Counter())
