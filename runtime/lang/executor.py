"""Executes what one program says, in order: one worker a state, in the shared event loop.

Saying never waits and never raises. A failure ends the worker; it is raised where something is
read that is missing because of it, or else at the end of the run (see `runtime.lang.group`).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from runtime.lang.backend import Backend
from runtime.lang.failures import bare, cancelled, label, labelled
from runtime.lang.family import Member
from runtime.lang.group import Group
from runtime.lang.ir import Begin, End, Expr, Gen, Mark, Select, Text, leaves
from runtime.lang.loop import LOOP
from runtime.lang.prompt import Prompt, Transcript
from runtime.lang.recent import compute
from runtime.lang.sampling import Sampling
from runtime.lang.snapshot import Growth, Snapshot
from runtime.lang.text_log import TextLog
from runtime.lang.variables import Value, Variables, all_over, all_values
from runtime.lang.waiting import over
from runtime.lang.writing import write

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Step:
    """One thing to do, and who waits for it."""

    work: Callable[[], Coroutine[Any, Any, Any]]
    promise: "Future[Any]"


class Executor:
    """The worker of one state.

    backend    runs the generations
    sampling   what generations leave open
    arguments  of the function that says it, as text, until a request has been made
    streams    publish generations piece by piece
    group      the executors of the same run
    variables  what was promised under each name, the latest
    log        the text so far
    body       the promise of what the body that writes here returns, if it runs in the background
    stop_body  ends such a body where it waits, if that takes more than failing what it reads
    """

    def __init__(
        self,
        backend: Backend,
        sampling: Sampling,
        *,
        streams: bool = False,
        group: Group | None = None,
    ) -> None:
        self.backend = backend
        self.sampling = sampling
        self.streams = streams
        self.arguments: tuple[str, ...] = ()
        self.group = group or Group()
        self.variables = Variables()
        self.log = TextLog()
        self.failure: BaseException | None = None
        self.body: Future[Any] | None = None
        self.stop_body: Callable[[], Any] | None = None
        self._member = Member(self)
        # A join waits for this executor, and fails where it fails.
        self._is_joined = False
        # A program that another's body runs: where all it said is there, that stays readable.
        self._is_nested = False
        self._transcript = Transcript()
        self._start_point = Snapshot()
        self._scopes: dict[str, list[int]] = {}
        # Reentrant: the garbage collector may end a state while this thread holds it.
        self._lock = threading.RLock()
        self._steps: deque[_Step] = deque()
        self._current: _Step | None = None
        self._walk: asyncio.Task[None] | None = None
        self._awake = False
        # What a walk is cancelled for, where it is told.
        self._why: BaseException | None = None

    # --- from any thread

    def say(self, expr: Expr) -> None:
        """Append an expression; text alone waits until something needs it."""
        for leaf in leaves(expr):
            match leaf:
                case Text():
                    self._append(lambda text=leaf.text: self._say(text), wake=False)
                case Gen():
                    self._request(leaf, lambda gen=leaf: self._generate(gen))
                case Select():
                    self._request(leaf, lambda select=leaf: self._select(select))
                case Begin():
                    self._append(lambda role=leaf.role: self._turn(role, opens=True), wake=False)
                case End():
                    self._append(lambda role=leaf.role: self._turn(role, opens=False), wake=False)
                case Mark(opens=True):
                    self._append(lambda name=leaf.name: self._open(name), wake=False)
                case Mark():
                    self._define(leaf.name, lambda name=leaf.name: self._close(name))
                case _:
                    raise TypeError(f"{type(leaf).__name__} cannot be said")

    def read(self, name: str) -> "Future[Value]":
        """Return the promise of a variable. Raises KeyError for a name nothing has."""
        self._wake()
        return self.variables[name]

    def settled(self) -> "Future[None]":
        """Return the promise that everything said so far is walked; kept already if it is."""
        with self._lock:
            spared = self._is_nested or self._member.error is None
            is_walked = self._is_idle and self.failure is None and spared
        if not is_walked:
            return self._append(self._nothing)
        kept: Future[None] = Future()
        kept.set_result(None)
        return kept

    def messages(self) -> list[dict[str, str]]:
        """Return the closed turns. Everything must be settled."""
        return self._transcript.messages()

    def fork(self, count: int, keep: object) -> "list[Executor]":
        """Return executors that go on from here, each by itself.

        For several, what is said so far is computed once, before they start.

        keep  what must live until they have
        """
        # A long line of forks, of which the latest alone lives, is short here.
        if (above := self._member.living_parent()) is not self._member.parent:
            self._member.parent = None
            if above is not None:
                self._join(above)
        ready: Future[Snapshot] = self._append(lambda: self._snapshot(commit=count > 1))
        children: list[Executor] = []
        for _ in range(count):
            child = Executor(self.backend, self.sampling, streams=self.streams, group=self.group)
            child.variables = self.variables.fork()
            if self.failure is None:
                child._append(lambda child=child: child._adopt(ready, keep))
            else:
                child.failure, child._member.inherits_error = self.failure, True
            child._join(self._member)
            children.append(child)
        return children

    def take_in(self, program: "Executor") -> None:
        """Let a program that the body here runs end with this one, or at once if it has ended."""
        program._is_nested = True
        program._join(self._member)

    def gather(self, children: "Sequence[Executor]", keep: object) -> None:
        """Define each variable that `children` have beyond this state's, as a list over them.

        What is said here afterwards waits until all that was said in `children` is there, and
        fails if it fails.

        keep  what must live until then
        """
        everything = [child._hand_over(child.settled) for child in children]
        gathered = self.variables.gather([child.variables for child in children])
        for name, sources in gathered.items():
            self._define(name, lambda sources=sources: all_values(sources, keep))
            self.variables.set_gathered(name, self.variables[name])
        self._append(lambda: all_over(everything, keep))

    def append_forks(self, children: "Sequence[Executor]", keep: object) -> None:
        """Append what each of `children`, forks, has said since it began, one after the other.

        keep  what must live until all of it is there
        """
        promises = [
            child._hand_over(lambda child=child: child._append(child._growth)) for child in children
        ]
        self._append(lambda: self._append_growths(promises, keep))

    def mark_read(self, error: BaseException, name: str | None = None) -> None:
        """Note that a failure was raised to a reader, of variable `name` if it was one."""
        member = self._member.origin()
        self.group.drop_failure(member, error)
        if name is not None and self.variables.is_inherited(name):
            while (member := member.parent) is not None:
                self.group.drop_failure(member, error)

    def cancel(self, error: BaseException | None = None) -> None:
        """End what is under way, here, in forks and in programs the body runs, and what follows.

        What was not there yet raises Aborted when it is read, or the error that ended the body.
        """
        for worker, why in self._member.cancel(error or cancelled()):
            LOOP.call(worker.stop, why)

    def abandon(self) -> None:
        """End what is under way since nobody can read it any more.

        In a run that goes on, a fork is finished nevertheless: its failure would be the run's.
        Forks that somebody holds live on, unless a body that has not ended made them.
        """
        if self.body is not None and not self.body.done():
            self.cancel()
        elif self.body is not None:
            for worker in (self, *self.group.close()):
                LOOP.call(worker.stop)
        elif not self.group.keeps(self):
            LOOP.call(self.stop)

    def _join(self, parent: Member) -> None:
        self._member.stand_below(parent)
        if parent.error is not None:
            self.cancel(parent.error)

    def _hand_over(self, promise: "Callable[[], Future[Result]]") -> "Future[Result]":
        """Return a promise of all that was said; whoever waits for it takes over a failure."""
        self._is_joined = True
        self.group.drop_failure(self._member)
        return promise()

    # --- the queue

    @property
    def _is_idle(self) -> bool:
        return not self._awake and not self._steps

    def _request(self, leaf: Gen | Select, work: Callable[[], Coroutine[Any, Any, Value]]) -> None:
        kind = "gen" if isinstance(leaf, Gen) else "select"
        self._define(leaf.name, lambda: labelled(work(), label(kind, leaf.name)))

    def _define(self, name: str | None, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._is_joined = False
        promise = self._append(work)
        if promise.done() and (error := promise.exception()) is not None:
            # A program that goes on after a failure, which it may have read, loses this as well.
            self.group.add_failure(self._member.origin(), error)
        if name is not None:
            self.variables[name] = promise
            self.log.wake()

    def _append(
        self, work: Callable[[], Coroutine[Any, Any, Any]], *, wake: bool = True
    ) -> "Future[Any]":
        promise: Future[Any] = Future()
        with self._lock:
            failure = self.failure or self._member.error
            if failure is None:
                self._steps.append(_Step(work, promise))
            elif self._is_idle:
                self.failure = failure
        if failure is not None:
            promise.set_exception(failure)
        elif wake:
            self._wake()
        return promise

    def _wake(self) -> None:
        with self._lock:
            if self._awake or not self._steps:
                return
            self._awake = True
            self.group.begin_work()
        LOOP.call(self._start)

    # --- in the event loop

    def _start(self) -> None:
        self._walk = asyncio.ensure_future(self._steps_in_order())
        self._walk.add_done_callback(self._ended)

    async def _steps_in_order(self) -> None:
        while True:
            with self._lock:
                self._current = self._steps.popleft() if self._steps else None
                if self._current is None:
                    self._awake = False
                    return
            self._current.promise.set_result(await self._current.work())

    def _ended(self, walk: "asyncio.Task[None]") -> None:
        """Take in how a walk ended; a failure fails whatever was to follow."""
        if self._walk is walk:
            self._walk = None
        error = self._why or cancelled() if walk.cancelled() else walk.exception()
        if error is not None:
            self._fail(bare(error), is_cancelled=walk.cancelled())
        self.group.end_work()

    def _fail(self, error: BaseException, *, is_cancelled: bool) -> None:
        with self._lock:
            self.failure = error
            broken = [step for step in (self._current, *self._steps) if step is not None]
            self._current = None
            self._steps.clear()
        # A fork that the program cancels is not a failure of the program. This comes before the
        # promises: what is read afterwards is read.
        is_ours = self._member.parent is None or not is_cancelled
        if is_ours and not (self._is_joined or self._member.inherits_error):
            self.group.add_failure(self._member, error)
        for step in broken:
            step.promise.set_exception(error)
        self.log.wake()

    def stop(self, error: BaseException | None = None) -> None:
        """End what is under way here; what was not there yet raises `error`, or Aborted."""
        if self.stop_body is not None:
            self.stop_body()
        if self._walk is not None and not self._walk.done():
            self._why = self._why or error
            self._walk.cancel()
        elif self.failure is None and not (self._is_nested and self._is_idle):
            self._fail(error or cancelled(), is_cancelled=True)

    # --- the steps

    async def _nothing(self) -> None:
        pass

    async def _say(self, text: str) -> None:
        self._transcript.add(text)
        self.log.add(None, text)

    async def _turn(self, role: str, *, opens: bool) -> None:
        (self._transcript.begin if opens else self._transcript.end)(role)

    async def _open(self, name: str) -> None:
        self._scopes.setdefault(name, []).append(len(self.log.pieces))

    async def _close(self, name: str) -> Value:
        return Value(self.log.text(self._scopes[name].pop()))

    def _prompt(self) -> Prompt:
        """Return what has been said; of the first one also where other runs may part from it."""
        arguments, self.arguments = self.arguments, ()
        return self._transcript.prompt().parting(arguments)

    async def _generate(self, gen: Gen) -> Value:
        sampling = gen.sampling.over(self.sampling)
        written = await write(
            self.backend,
            self._prompt(),
            sampling,
            partial(self.log.add, gen.name),
            streams=self.streams,
        )
        first = written[0]
        self._transcript.add(first.text, first.token_ids, is_cut=first.is_cut)
        if sampling.n in (None, 1):
            return Value(first.text, first.meta_info)
        return Value([w.text for w in written], [w.meta_info for w in written])

    async def _select(self, select: Select) -> Value:
        scores, facts = await self.backend.score(
            self._prompt(),
            select.choices,
            unconditional=select.method.requires_unconditional_logprobs,
        )
        decision = select.method(scores)
        chosen = select.choices[decision.index]
        self._transcript.add(chosen)
        value = Value(chosen, {**facts, **decision.meta_info})
        self.log.add(select.name, chosen, value.meta_info)
        return value

    async def _snapshot(self, *, commit: bool) -> Snapshot:
        shared = self._transcript.settled()
        if commit and shared:
            await labelled(compute(self.backend, shared), "fork")
        return Snapshot(self._transcript.copy(), list(self.log.pieces))

    async def _adopt(self, ready: "Future[Snapshot]", keep: object) -> None:
        await over(ready)
        del keep
        self._member.inherits_error = ready.exception() is not None
        snapshot = ready.result()
        self._start_point = snapshot
        self._transcript = snapshot.transcript.copy()
        self.log.pieces[:] = snapshot.pieces
        self.log.wake()

    async def _growth(self) -> Growth:
        text = self.log.text(len(self._start_point.pieces))
        return self._start_point.growth(self._transcript, text)

    async def _append_growths(self, promises: "list[Future[Growth]]", keep: object) -> None:
        await all_over(promises, keep)
        for growth in (promise.result() for promise in promises):
            growth.append_to(self._transcript)
            self.log.add(None, growth.text)
