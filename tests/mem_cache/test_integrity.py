"""Every invariant is broken once, on purpose; the check must find it and say where."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from mem_cache.errors import IntegrityError
from mem_cache.node import Node, Root
from mem_cache.resume_point import ResumePoint
from mem_cache.spec import TreeSpec
from tests.testing.dictionary_model import Rig

Break = Callable[["Tree"], object]


class Tree:
    """Two sequences that part at 4, with points, one lock and one pin; and names for the parts.

    [0, 4) points 3, 4    [4, 8) points 6, 8, locked, 8 pinned    [4, 10) unlocked, two SWA pages
    """

    def __init__(self) -> None:
        self.rig = Rig(TreeSpec(page_size=4, swa_page_size=2, window=4), full=20, swa=20, rings=9)
        self.rig.complete([0, 1, 2, 3, 4, 5, 6, 7], 3, 4, 6, 8)
        self.rig.complete([0, 1, 2, 3, 9, 9, 9, 9, 9, 9])
        self.lock = self.rig.cache.lock(self.rig.match([0, 1, 2, 3, 4, 5, 6, 7, 8]))
        self.cache = self.rig.cache
        self.root = self.cache.roots[""]
        self.top = self._find(0, 4)
        self.locked = self._find(4, 8)
        self.loose = self._find(4, 10)

    def _find(self, start: int, end: int) -> Node:
        nodes = [n for n in self.root.depth_first() if (n.start, n.end) == (start, end)]
        return next(node for node in nodes if not node.is_root)

    def check(self) -> None:
        self.cache.check(full=Counter(), swa=Counter(), rings=Counter())


def _set(part: str, name: str, value: object) -> Break:
    def apply(tree: Tree) -> None:
        setattr(getattr(tree, part), name, value)

    return apply


def _point(tree: Tree) -> ResumePoint[Node]:
    return tree.locked.points[0]


def _rekey(tree: Tree, key: list[int]) -> None:
    tree.top.children.remove(tree.loose.key)
    tree.top.children.add(np.array(key, np.int32).tobytes(), tree.loose)


def _retell(tree: Tree, tokens: list[int]) -> None:
    """Give the loose node other tokens, and the key that goes with them."""
    tree.top.children.remove(tree.loose.key)
    tree.loose.tokens = np.array(tokens, np.int32)
    tree.loose.pages = tree.loose.pages[: -(-len(tokens) // 4)]
    tree.top.children.add(tree.loose.key, tree.loose)


def _forget_sorted(tree: Tree) -> None:
    tree.top.children._sorted[0].pop()


def _reverse_sorted(tree: Tree) -> None:
    tree.top.children._sorted[0].reverse()


def _double_sorted(tree: Tree) -> None:
    keys = tree.top.children._sorted[0]
    keys.insert(0, keys[0])


def _reserve_pages(tree: Tree) -> None:
    tree.loose.pages = np.array([tree.top.pages[0], *tree.loose.pages[1:]], np.int32)


def _drop_head(tree: Tree) -> None:
    tree.top.children.remove_head(np.array([4, 5], np.int32).tobytes())


def _invent_head(tree: Tree) -> None:
    tree.top.children.add_head(np.array([9], np.int32).tobytes(), _point(tree))


def _second_point_for_the_same_tokens(tree: Tree) -> None:
    _retell(tree, [4, 5, 9, 9, 9, 9])
    tree.loose.points.append(ResumePoint(6, tree.loose, swa_pages=(1, 2), ring=1))


def _swap_points(tree: Tree) -> None:
    tree.locked.points.reverse()


def _shorten_window(tree: Tree) -> None:
    _point(tree).swa_pages = _point(tree).swa_pages[1:]


def _cut_lru(tree: Tree) -> None:
    tree.loose.newer = tree.loose


def _list_stranger(tree: Tree) -> None:
    tree.cache.full_lru.push_newest(Root(4, "elsewhere"))


def _list_strange_point(tree: Tree) -> None:
    point: ResumePoint[Node] = ResumePoint(3, tree.top, swa_pages=(), ring=1)
    tree.cache.swa_lru.push_newest(point)


FAULTS: list[tuple[str, Break]] = [
    (r"its root is that of 'x'", _set("root", "namespace", "x")),
    (r"a root stands in a list", lambda t: t.cache.full_lru.push_newest(t.root)),
    (r"a root has a parent", lambda t: setattr(t.root, "parent", t.top)),
    (r"a root has tokens", _set("root", "tokens", np.zeros(4, np.int32))),
    (r"'new': empty, yet kept", lambda t: t.cache.roots.update(new=Root(4, "new"))),
    (r"\[4, 4\): an empty span", _set("loose", "tokens", np.empty(0, np.int32))),
    (r"\[4, 10\): another page size", _set("loose", "page_size", 2)),
    (r"\[4, 10\): its parent link", lambda t: setattr(t.loose, "parent", t.root)),
    (r"\[8, 14\): starts elsewhere than at 4", _set("loose", "start", 8)),
    (r"\[4, 9\): starts elsewhere|\[0, 3\)", _set("top", "tokens", np.arange(3, dtype=np.int32))),
    (r"\[4, 10\): has 1 pages", _set("loose", "pages", np.array([4], np.int32))),
    (r"\[0, 4\): child keys out of order", _reverse_sorted),
    (r"\[0, 4\): child keys disagree", _forget_sorted),
    (r"\[0, 4\): a child key stands twice", _double_sorted),
    (r"\[0, 4\): child \[4, 10\) has another key", lambda t: _rekey(t, [7, 7, 7, 7])),
    (r"a child key is a prefix of another", lambda t: _retell(t, [4, 5])),
    (r"resume point 6 is given up", lambda t: setattr(_point(t), "alive", False)),
    (r"resume point 6 says it hangs elsewhere", lambda t: setattr(_point(t), "node", t.top)),
    (r"\[4, 8\): resume point 6 out of order", _swap_points),
    (r"resume point 4 out of order or of", lambda t: setattr(_point(t), "position", 4)),
    (r"resume point 9 out of order or of", lambda t: setattr(t.locked.points[1], "position", 9)),
    (r"resume point 6 has 1 SWA pages", _shorten_window),
    (r"\[4, 10\): full_lock_ref is -1", _set("loose", "full_lock_ref", -1)),
    (r"resume point 6 is -1", lambda t: setattr(_point(t), "swa_lock_ref", -1)),
    (r"\[4, 8\): full_lock_ref 2 < 3", lambda t: setattr(_point(t), "swa_lock_ref", 2)),
    (r"page \d+ stands in the tree twice", _reserve_pages),
    (r"\[0, 4\): index of points in first pages is wrong", _drop_head),
    (r"\[0, 4\): index of points in first pages is wrong", _invent_head),
    (r"tokens before resume point 6 have another", _second_point_for_the_same_tokens),
    (r"full_lru: list of 2 items is broken", _cut_lru),
    (r"full_lru: 1 nodes are not in the tree", _list_stranger),
    (r"\[4, 8\): locked, yet in full_lru", lambda t: t.cache.full_lru.push_newest(t.locked)),
    (r"\[4, 10\): an unlocked leaf is missing", lambda t: t.cache.full_lru.remove(t.loose)),
    (r"\[4, 8\): its links lead into another", lambda t: setattr(t.locked, "newer", t.locked)),
    (r"resume point 6 is not in swa_lru", lambda t: t.cache.swa_lru.remove(_point(t))),
    (r"point 8 is in swa_lru", lambda t: t.cache.swa_lru.push_newest(t.locked.points[1])),
    (r"swa_lru: 1 resume points are not in the tree", _list_strange_point),
    (r"nodes=4", lambda t: setattr(t.cache, "nodes", 4)),
    (r"pages=7", lambda t: setattr(t.cache, "tree_pages", 7)),
    (r"points=5", lambda t: setattr(t.cache, "points", 5)),
    (r"locks=2", lambda t: setattr(t.cache, "locks", 2)),
    (r"pins=0", lambda t: setattr(t.cache, "pins", 0)),
    (r"pool full: unit", lambda t: t.rig.full.incref(t.top.pages)),
    (r"pool full: unit", lambda t: t.rig.full.alloc(1)),
    (r"pool swa: unit", lambda t: t.rig.swa.decref(_point(t).swa_pages[:1])),
    (r"pool rings: unit", lambda t: t.rig.rings.incref([_point(t).ring])),
]


def test_a_sound_tree_passes() -> None:
    tree = Tree()

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


def test_the_path_to_the_fault_is_told() -> None:
    tree = Tree()
    tree.loose.full_lock_ref = -1

    with pytest.raises(IntegrityError) as fault:
        tree.check()

    assert str(fault.value).startswith("namespace '' > [0, 4) > [4, 10): ")


def test_references_that_rows_hold_are_accounted_for() -> None:
    tree = Tree()
    tree.rig.full.incref(tree.top.pages)
    held = Counter(tree.top.pages.tolist())

    tree.cache.check(full=held, swa=Counter(), rings=Counter())


def test_a_partial_node_with_children_is_found() -> None:
    tree = Tree()
    leaf = Node(4, 10, np.array([1], np.int32), tree.rig.full.alloc(1))
    tree.loose.adopt(leaf)

    with pytest.raises(IntegrityError, match=r"\[4, 10\): partial, with children"):
        tree.check()


def test_a_node_that_starts_inside_a_page_is_found() -> None:
    tree = Tree()
    leaf = Node(4, 10, np.array([1], np.int32), tree.rig.full.alloc(1))
    tree.loose.children.add(leaf.key, leaf)
    leaf.parent = tree.loose
    tree.loose.page_size = 4

    with pytest.raises(IntegrityError, match=r"partial, with children|starts inside a page"):
        tree.check()
