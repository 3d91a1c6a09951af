"""Where resume points are left in a prompt, and why."""

from dataclasses import dataclass

from mem_cache.tree.handles import Match, PointKind

EARLIER_PAGES = 4


@dataclass(frozen=True, slots=True)
class ResumePolicy:
    """Where resume points are left; every one costs a state and up to a window of SWA pages.

    prompt_end         at the end of each prefilled prompt
    request_end        at the end of a finished, aborted or retracted request
    page_end           at the begin of a prompt's last page, and `EARLIER_PAGES` before it: other
                       prompts often part from it in its last tokens
    branch_min_tokens  where full pages matched further than the deepest resume point, and where
                       a waiting request will leave a prompt being prefilled: if that saves the
                       next one at least this many tokens
    every_pages        besides, after every so many pages of a prompt; 0: none
    waypoint_tokens    distance of the `Waypoints` of a prompt; 0: none
    """

    prompt_end: bool = True
    page_end: bool = True
    request_end: bool = True
    branch_min_tokens: int = 64
    every_pages: int = 0
    waypoint_tokens: int = 2048

    def positions(
        self, match: Match, *, target: int, boundaries: tuple[int, ...], page_size: int
    ) -> dict[int, PointKind]:
        """Return where a request that starts as matched is to leave points, and of which kind.

        target      where its prefill ends
        boundaries  `Request.boundaries`
        """
        known, least = max(match.start, match.full_tokens), self.branch_min_tokens
        wanted = dict.fromkeys(boundaries, PointKind.BOUNDARY)
        if self.page_end:
            last = (target - 1) // page_size * page_size
            wanted.setdefault(last - EARLIER_PAGES * page_size, PointKind.WAYPOINT)
            wanted[last] = PointKind.BOUNDARY
        first = max(known + 1, match.start + least)
        wanted = {position: kind for position, kind in wanted.items() if position >= first}
        if self.every_pages:
            step = self.every_pages * page_size
            first = (known // step + 1) * step
            wanted |= dict.fromkeys(range(first, target, step), PointKind.BRANCH)
        if match.full_tokens - match.start >= least:
            wanted[match.full_tokens] = PointKind.BRANCH
        if self.prompt_end:
            wanted[target] = PointKind.PROMPT_END
        return wanted
