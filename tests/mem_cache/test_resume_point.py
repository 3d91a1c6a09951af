"""A resume point starts out alive, unpinned and in no list."""

from mem_cache.resume_point import ResumePoint


def test_a_new_point_is_alive_unpinned_and_unlisted() -> None:
    point = ResumePoint(7, "anything that can hold it", swa_pages=(3, 4), ring=2)

    assert (point.position, point.node) == (7, "anything that can hold it")
    assert (point.swa_pages, point.ring) == ((3, 4), 2)
    assert (point.alive, point.swa_lock_ref, point.linked) == (True, 0, False)
