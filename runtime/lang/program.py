"""Programs: functions whose first parameter is a state, made by `@function`."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, overload

from runtime.errors import RequestError
from runtime.lang.backend import Backend, backend_or_default
from runtime.lang.batch import AT_ONCE, Batch
from runtime.lang.bodies import wait
from runtime.lang.failures import shorten
from runtime.lang.loop import LOOP
from runtime.lang.recent import commit
from runtime.lang.running import Call, run_async, run_here, start
from runtime.lang.sampling import ACCEPTED, Sampling
from runtime.lang.state import State
from runtime.lang.trace import common_prefix

Arguments = Mapping[str, Any] | Sequence[Any]


class Program:
    """A function of a state that can be run, alone or many at once.

    Keyword arguments that are no parameters of the function are fields of `Sampling`
    (`max_new_tokens`, `temperature` ...): what generations that leave them open use.

    traces  batches may run the function on placeholders first
    """

    def __init__(
        self,
        function: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        *,
        traces: bool = True,
    ) -> None:
        self.function = function
        self.traces = traces
        self.bound = dict(bound or {})
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._signature = inspect.signature(function)

    @property
    def func(self) -> Callable[..., Any]:
        """The function, as SGLang names it."""
        return self.function

    def bind(self, **arguments: Any) -> "Program":
        """Return this program with some arguments given."""
        return Program(self.function, {**self.bound, **arguments}, traces=self.traces)

    def run(
        self, *arguments: Any, backend: Backend | None = None, stream: bool = False, **keywords: Any
    ) -> State:
        """Run the program to its end and return its state.

        The function runs in the calling thread. With `stream` this returns at once, the program
        goes on in the background, and reading its state raises what goes wrong. Raises what the
        function raises, the first failure of what it says that it does not read itself, and
        TypeError for arguments that do not fit. A program that another one's function runs may
        still work when this returns: the other one ends when both have, with the failure of either.
        """
        call, sampling = self._call(arguments, keywords)
        chosen = backend_or_default(backend)
        if stream:
            return start(call, chosen, sampling, streams=True)
        try:
            return run_here(call, chosen, sampling)
        except RequestError as error:
            shorten(error)
            raise

    __call__ = run

    def cache(self, backend: Backend | None = None) -> None:
        """Compute what all runs begin with, whatever the arguments that are not bound are."""
        chosen = backend_or_default(backend)
        named = [name for name in list(self._signature.parameters)[1:] if name not in self.bound]
        calls = [self._call((), {name: object() for name in named})[0] for _ in range(2)]
        prefix = common_prefix(calls, chosen)
        if prefix is not None:
            wait(LOOP.submit(commit(chosen, prefix)))

    def stream(self, *arguments: Any, backend: Backend | None = None, **keywords: Any) -> State:
        """Start the program and return its state at once, to read text as it comes."""
        return self.run(*arguments, backend=backend, stream=True, **keywords)

    async def arun(self, *arguments: Any, backend: Backend | None = None, **keywords: Any) -> State:
        """Run the program without blocking the caller's event loop, all of it.

        Being cancelled ends its requests. Raises like `run`.
        """
        call, sampling = self._call(arguments, keywords)
        try:
            return await run_async(call, backend_or_default(backend), sampling)
        except RequestError as error:
            shorten(error)
            raise

    @overload
    def run_batch(
        self,
        batch: Sequence[Arguments],
        *,
        generator_style: Literal[False] = False,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        raise_errors: bool = True,
        trace: bool | None = None,
        backend: Backend | None = None,
        **sampling: Any,
    ) -> list[State]:
        """Return all states."""
        ...

    @overload
    def run_batch(
        self,
        batch: Sequence[Arguments],
        *,
        generator_style: bool,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        raise_errors: bool = True,
        trace: bool | None = None,
        backend: Backend | None = None,
        **sampling: Any,
    ) -> list[State] | Iterator[State]:
        """Return an iterator, where asked for."""
        ...

    def run_batch(
        self,
        batch: Sequence[Arguments],
        *,
        generator_style: bool = False,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        raise_errors: bool = True,
        trace: bool | None = None,
        backend: Backend | None = None,
        **sampling: Any,
    ) -> list[State] | Iterator[State]:
        """Run the program once per entry of `batch`: keyword arguments, or a tuple of others.

        What all of them begin with is computed once, first. The first program that fails ends the
        others, and its failure is raised when all have ended; it names the entry. An iterator
        yields the states of the entries before it first.

        num_threads      how many programs may run at once; a number also lets as many bodies block
                         at once, each in a thread that is started when it is needed
        generator_style  return an iterator that yields states, in order, as they finish
        raise_errors     False: run all programs and return all states; reading the state of one
                         that failed raises its failure, and its `error()` returns it
        trace            whether the function is first run on placeholders, to find what all
                         programs begin with; None: as the function's own `trace` says
        """
        calls = [
            self._call((), entry) if isinstance(entry, Mapping) else self._call(tuple(entry), {})
            for entry in batch
        ]
        at_once = AT_ONCE if num_threads == "auto" else num_threads
        if at_once < 1:
            raise ValueError(f"num_threads must be at least 1, not {at_once}")
        shared = Sampling.of(sampling)
        runs = Batch(
            [(call, own.over(shared)) for call, own in calls],
            backend_or_default(backend),
            at_once=at_once,
            threads=0 if num_threads == "auto" else num_threads,
            traces=self.traces if trace is None else trace,
            raise_errors=raise_errors,
            lazy=generator_style,
        )
        results = runs.results(progress=progress_bar)
        return results if generator_style else list(results)

    def _call(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> tuple[Call, Sampling]:
        """Tell the function's arguments from sampling. Raises TypeError where they do not fit."""
        given = {**self.bound, **keywords}
        sampling = {
            name: given.pop(name)
            for name in list(given)
            if name in ACCEPTED and name not in self._signature.parameters
        }
        fitted = self._signature.bind(None, *arguments, **given)
        fitted.apply_defaults()
        return Call(self.function, fitted.args[1:], fitted.kwargs), Sampling.of(sampling)


@overload
def function(
    function: Callable[..., Any], num_api_spec_tokens: int | None = None, *, trace: bool = True
) -> Program:
    """Make a program."""
    ...


@overload
def function(
    function: None = None, num_api_spec_tokens: int | None = None, *, trace: bool = True
) -> Callable[[Callable[..., Any]], Program]:
    """Return what makes one."""
    ...


def function(
    function: Callable[..., Any] | None = None,
    num_api_spec_tokens: int | None = None,
    *,
    trace: bool = True,
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function, plain or `async def`; its first parameter is the state.

    `@function`, `@function()` and `@function(num_api_spec_tokens=64)` are the same.

    num_api_spec_tokens  ignored: SGLang writes ahead of the program by as many, and gives the same
    trace                False: the function is never run on placeholders, to find what all programs
                         of a batch begin with
    """
    if function is None:
        return partial(Program, traces=trace)
    return Program(function, traces=trace)
