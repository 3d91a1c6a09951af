"""What all programs of a batch begin with: found by running the function on placeholders.

An argument that is the same for all of them is given as it is, any other as a placeholder, which
can be put into text and nothing else. What is said before the first placeholder, the first
generation, an effect (see `runtime.lang.effects`) or anything else that a placeholder cannot do is
common to all.
"""

import contextvars
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any, NoReturn, TypeVar

from runtime.lang.backend import Backend
from runtime.lang.bodies import in_body
from runtime.lang.effects import assigns_outer_names, without_effects
from runtime.lang.executor import Executor
from runtime.lang.ir import Begin, End, Expr, Mark, Text, leaves
from runtime.lang.prompt import Prompt, Transcript
from runtime.lang.running import Call, enroll, finish
from runtime.lang.sampling import Sampling
from runtime.lang.state import AsyncState, State

# Shorter ones are not worth a request of their own. Source: SGLang's language.
MIN_PREFIX_CHARS = 64
Result = TypeVar("Result")


class _Stop(BaseException):
    """The end of what is common. No Exception: a program must not catch it."""


class Placeholder:
    """An argument that differs from program to program."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __str__(self) -> str:
        return self._mark

    def __format__(self, spec: str) -> str:
        return self._mark

    def __add__(self, other: str) -> str:
        return self._mark + other

    def __radd__(self, other: str) -> str:
        return other + self._mark

    def __getattr__(self, name: str) -> NoReturn:
        raise _Stop

    def _stop(self, *_: Any) -> NoReturn:
        raise _Stop

    __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _stop
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _stop  # pyright: ignore
    __int__ = __float__ = __index__ = __repr__ = _stop  # pyright: ignore


class _Recorder(Executor):
    """An executor that runs nothing: keeps what is said until something would have to run."""

    def __init__(self, backend: Backend, mark: str) -> None:
        super().__init__(backend, Sampling())
        self.transcript = Transcript()
        self._mark = mark

    def say(self, expr: Expr) -> None:
        for leaf in leaves(expr):
            match leaf:
                case Text():
                    before, mark, _ = leaf.text.partition(self._mark)
                    self.transcript.add(before)
                    if mark:
                        raise _Stop
                case Begin():
                    self.transcript.begin(leaf.role)
                case End():
                    self.transcript.end(leaf.role)
                case Mark():
                    pass
                case _:
                    raise _Stop

    def read(self, name: str) -> Any:
        raise _Stop

    def settled(self) -> Any:
        raise _Stop

    def take_in(self, program: Executor) -> Any:
        raise _Stop

    def _append(self, work: Callable[[], Coroutine[Any, Any, Any]], *, wake: bool = True) -> Any:
        raise _Stop

    def cancel(self, error: BaseException | None = None) -> None:
        pass

    def abandon(self) -> None:
        pass


def common_prefix(calls: Sequence[Call], backend: Backend) -> Prompt | None:
    """Return what all `calls`, of one function, begin with; None where that is too little.

    A function that assigns variables outside of itself is not run for that.
    """
    if len({(len(call.arguments), *sorted(call.keywords)) for call in calls}) > 1:
        return None
    if assigns_outer_names(calls[0].function):
        return None
    mark = f"<placeholder {uuid.uuid4().hex}>"
    recorder = _Recorder(backend, mark)
    enroll(recorder)
    call = _generalised(calls, mark)
    body = Call(_first_step, (call,)) if call.is_async else call
    ended: Future[Any] = Future()
    _traced(lambda: finish(body, State(recorder, owns=False), ended))()
    # The function was not made for placeholders, and says so in whatever way it pleases.
    error = ended.exception()
    if error is not None and not isinstance(error, Exception | _Stop):
        raise error
    prompt = recorder.transcript.settled()
    if prompt.turns and len(recorder.transcript.begun) < MIN_PREFIX_CHARS:
        prompt = recorder.transcript.closed()
    chat = [*(turn.content for turn in prompt.turns), *(part.text for part in prompt.between)]
    size = len(prompt.text) + sum(map(len, chat))
    return prompt if size >= MIN_PREFIX_CHARS else None


def _traced(work: Callable[[], Result]) -> Result:
    """Return what `work` does, without effects: from inside a body in a thread of its own.

    A profiler, which finds the effects, cannot be set in a greenlet.
    """
    if not in_body():
        with without_effects(_Stop):
            return work()
    done: Future[Result] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        with without_effects(_Stop):
            result = context.run(work)
        done.set_result(result)

    thread = threading.Thread(target=run, name="umbra-trace", daemon=True)
    thread.start()
    return done.result()


def _first_step(state: State, call: Call) -> None:
    """Run an async body up to where it first waits."""
    body: Coroutine[Any, Any, Any] = call(AsyncState(state.executor, owns=False))
    with closing(body), suppress(StopIteration):
        body.send(None)


def _generalised(calls: Sequence[Call], mark: str) -> Call:
    first = calls[0]
    arguments = tuple(
        _same([call.arguments[k] for call in calls], mark) for k in range(len(first.arguments))
    )
    keywords = {
        name: _same([call.keywords[name] for call in calls], mark) for name in first.keywords
    }
    return Call(first.function, arguments, keywords)


def _same(values: list[Any], mark: str) -> Any:
    first = values[0]
    plain = isinstance(first, str | int | float | None)
    same = all(v is first or (plain and type(v) is type(first) and v == first) for v in values)
    return first if same else Placeholder(mark)
