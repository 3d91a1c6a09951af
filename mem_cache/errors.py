"""What the cache floor raises."""


class IntegrityError(Exception):
    """A cache invariant is broken; the text names the node, page or list."""


class OutOfPages(Exception):
    """A pool has fewer free units than were asked for; nothing was taken."""

    def __init__(self, pool: str, wanted: int, free: int) -> None:
        super().__init__(f"pool {pool}: wanted {wanted}, free {free}")
        self.pool = pool
        self.wanted = wanted
        self.free = free
