"""What a model keeps of its sequences, in groups, and how much of each there is.

    Paged    of every token, for as long as its page is cached: a full page owns one unit of every
             such group, so that they share the ids of full pages
    Window   of the last tokens before a position; all windows of a model lie in the same SWA pages
    State    of one position, whatever its length: a unit for each row and for each resume point

A model has any number of each, and may have no window or no state. `TreeSpec` is all that the tree,
the allocators and the request table know of it. The byte maps are the model's own, and so is the
length of a replay; nothing here knows a model.
"""

from dataclasses import dataclass, field

__all__ = [
    "MAX_DRAFT_TOKENS",
    "CacheSpec",
    "Paged",
    "PoolSizes",
    "State",
    "TreeSpec",
    "Window",
    "div_ceil",
]

MAX_DRAFT_TOKENS = 7


def div_ceil(value: int, divisor: int) -> int:
    """Return `value / divisor` rounded up, for non-negative integers."""
    return -(-value // divisor)


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """Units of the host side: tokens per page, per SWA page, and per window.

    page_size      tokens in a full page, the unit of the tree
    swa_page_size  tokens in an SWA page; divides `page_size`
    window         tokens a resume point must hold before its position, to serve that and the one
                   before it; 0: no layer has a window
    draft_tokens   most guessed tokens of a row in a step, 0 to MAX_DRAFT_TOKENS: so many positions
                   may be written and rejected while the window before them is still needed
    has_state      rows and resume points keep a state
    window_pages   SWA pages of a window, in which a position takes the place of one before it. It
                   has room for draft tokens besides: rejected ones overwrite nothing still read
    """

    page_size: int = 256
    swa_page_size: int = 64
    window: int = 128
    draft_tokens: int = 0
    has_state: bool = True
    window_pages: int = field(init=False)

    def __post_init__(self) -> None:
        sizes = self.page_size, self.swa_page_size, self.window, self.draft_tokens
        if min(sizes[:2]) < 1 or self.window < 0:
            raise ValueError(f"sizes must be positive, a window at least 0: {sizes}")
        if self.page_size % self.swa_page_size:
            raise ValueError(f"page_size must be a multiple of swa_page_size: {sizes}")
        if not 0 <= self.draft_tokens <= MAX_DRAFT_TOKENS:
            raise ValueError(f"draft_tokens must be 0 to {MAX_DRAFT_TOKENS}: {sizes}")
        # Asked for with every point and page of a row.
        written = self.window + self.draft_tokens if self.window else 0
        object.__setattr__(self, "window_pages", div_ceil(written, self.swa_page_size))

    @property
    def has_points(self) -> bool:
        """Whether a request can start at resume points alone.

        With neither window nor state its pages are all that a position needs: it starts anywhere.
        """
        return self.window > 0 or self.has_state

    @property
    def row_swa_pages(self) -> int:
        """SWA pages one row may need at once: its window, and the one it is being copied from."""
        return 2 * self.window_pages

    @property
    def growth_tokens(self) -> int:
        """A row that grows may need more units at multiples of so many tokens, nowhere else."""
        return self.swa_page_size if self.window else self.page_size

    def window_pages_at(self, position: int) -> int:
        """SWA pages of the window, from its first on, that [0, position) has been written to.

        The window before `position` lies in them, in all of them where `draft_tokens` is 0.
        """
        return min(self.window_pages, div_ceil(position, self.swa_page_size))


@dataclass(frozen=True, slots=True)
class Paged:
    """What a full page holds of its tokens.

    page_bytes  of one page in all layers of the group
    """

    name: str
    page_bytes: int


@dataclass(frozen=True, slots=True)
class Window:
    """What an SWA page holds of its tokens, of which the last `tokens` are needed.

    tokens      those that a token attends, its own among them: one more than lies before it, as a
                resume point serves the position before its own, too
    page_bytes  of one page in all layers of the group
    """

    name: str
    tokens: int
    page_bytes: int


@dataclass(frozen=True, slots=True)
class State:
    """What rows and resume points hold of one position.

    live_bytes  of a row's, with room for draft tokens
    kept_bytes  of a resume point's; the pools convert where the two differ
    """

    name: str
    live_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What the runtime knows of a model's pools: their groups, and what each unit weighs.

    record_format  of what pages hold, for people
    replay_tokens  tokens before a position that make its windows and states exact in every layer
    Units are those of `TreeSpec`.
    """

    record_format: str
    paged: tuple[Paged, ...]
    windows: tuple[Window, ...] = ()
    states: tuple[State, ...] = ()
    replay_tokens: int = 0
    page_size: int = 256
    swa_page_size: int = 64
    draft_tokens: int = 0

    @property
    def tree(self) -> TreeSpec:
        """What the tree knows of it: the largest window, and whether there is a state."""
        return TreeSpec(
            self.page_size,
            self.swa_page_size,
            window=max((group.tokens for group in self.windows), default=0),
            draft_tokens=self.draft_tokens,
            has_state=bool(self.states),
        )

    @property
    def full_page_bytes(self) -> int:
        """Bytes of one full page in all groups."""
        return sum(group.page_bytes for group in self.paged)

    @property
    def swa_page_bytes(self) -> int:
        """Bytes of one SWA page in all groups."""
        return sum(group.page_bytes for group in self.windows)

    @property
    def live_state_bytes(self) -> int:
        """Bytes of a row's state in all groups."""
        return sum(group.live_bytes for group in self.states)

    @property
    def state_bytes(self) -> int:
        """Bytes of a resume point's state in all groups."""
        return sum(group.kept_bytes for group in self.states)

    @property
    def packs_states(self) -> bool:
        """Whether resume points keep another form of the state than rows have."""
        return any(group.kept_bytes != group.live_bytes for group in self.states)


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """How many units each pool has, the dummy unit 0 not counted.

    live_states  of `states`, the first so many are in the rows' form, one for each row, and the
                 others in that of resume points; 0: all have one form, and go from hand to hand
    """

    full_pages: int
    swa_pages: int
    states: int
    live_states: int = 0

    @property
    def kept_states(self) -> int:
        """States that resume points may have."""
        return self.states - self.live_states
