"""Where each request stands: one owner of the sets, through which they move.

enter          start             begin_decoding
------> waiting -----> prefills ----------------> decoding ---+
           ^              |                           |       |  leave
           +--------------+------ requeue ------------+       +------->
           |              |  suspend                  |
           +---------- suspended <--------------------+
"""

from runtime.scheduler.decode import DecodeSet
from runtime.scheduler.pending_prefixes import PendingPrefixes
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.request import Request, Status

__all__ = ["RequestSets"]


class RequestSets:
    """All requests that wait or run.

    by_id     all of them
    waiting   those that hold no row
    shares    what each client's share of the rows has been
    prefills  those whose prompt is being computed, in order of admission
    decoding  those whose first token is there
    suspended those that lost their row to a result that was not finite
    pending   prefixes of those that wait or are being computed
    """

    def __init__(self, waiting: WaitingQueue, decoding: DecodeSet) -> None:
        self.by_id: dict[int, Request] = {}
        self.waiting = waiting
        self.shares = waiting.shares
        self.prefills: list[Request] = []
        self.decoding = decoding
        self.suspended: list[Request] = []
        self.pending = PendingPrefixes()

    @property
    def running(self) -> list[Request]:
        """Those that hold a row."""
        return [*self.prefills, *self.decoding.requests]

    @property
    def running_count(self) -> int:
        """How many hold a row."""
        return len(self.prefills) + len(self.decoding)

    @property
    def waiting_uncached_tokens(self) -> int:
        """How many tokens are to be prefilled and in no step yet, as far as is known.

        Of a request that waits: from where its prefill would start by the last look-up in the
        cache, or by the prefill of another request that it waits for; in whole before the first
        look-up. Of one in prefill: what is not scheduled.
        """
        started = sum(max(r.target - r.scheduled, 0) for r in self.prefills)
        return self.waiting.uncached_tokens + started

    def enter(self, request: Request, *, start: int = 0) -> None:
        """Let a new request wait.

        start  where its prefill will start, as far as is known
        """
        self.by_id[request.id] = request
        self.pending.add(request)
        self.waiting.add(request)
        self.waiting.note_start(request, start)

    def withdraw(self, request: Request) -> None:
        """Forget a request that waits and never ran."""
        self.waiting.remove(request.id)
        self.pending.remove(request)
        del self.by_id[request.id]

    def start(self, request: Request) -> None:
        """Take a request that was given a row out of the queue."""
        self.waiting.start(request)
        self.prefills.append(request)
        self.shares.start(request.share, request.target - request.matched)

    def finish_prefill(self, request: Request) -> None:
        """Note that a prompt is computed; the request decodes or ends."""
        self.prefills.remove(request)
        self.pending.remove(request)
        request.status = Status.DECODE

    def suspend(self, request: Request) -> None:
        """Take a request out of the steps until the one in flight is settled."""
        self.leave_running(request)
        request.status = Status.SUSPENDED
        self.suspended.append(request)

    def requeue(self, request: Request) -> None:
        """Let a request wait that lost its row."""
        request.status = Status.WAITING
        self.pending.add(request)
        self.waiting.add(request)

    def leave_running(self, request: Request) -> None:
        """Take a request out of the steps."""
        if request in self.suspended:
            self.suspended.remove(request)
            return
        if request in self.prefills:
            self.prefills.remove(request)
        elif request in self.decoding.requests:
            self.decoding.remove(request)
        self.shares.stop(request.share)

    def leave(self, request: Request) -> None:
        """Forget a request that has ended and stands in no set any more."""
        request.status = Status.FINISHED
        self.pending.remove(request)
        del self.by_id[request.id]
