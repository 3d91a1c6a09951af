"""Programs: functions whose first parameter is a state, made by `@function`."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from runtime.lang.backend import Backend, backend_or_default
from runtime.lang.batch import AT_ONCE, Batch
from runtime.lang.running import Call, run_async, run_here, start
from runtime.lang.sampling import ACCEPTED, Sampling
from runtime.lang.state import State

Arguments = Mapping[str, Any] | Sequence[Any]


class Program:
    """A function of a state that can be run, alone or many at once.

    Keyword arguments that are no parameters of the function are fields of `Sampling`
    (`max_new_tokens`, `temperature` ...): what generations that leave them open use.
    """

    def __init__(
        self, function: Callable[..., Any], bound: Mapping[str, Any] | None = None
    ) -> None:
        self.function = function
        self.bound = dict(bound or {})
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._signature = inspect.signature(function)

    def bind(self, **arguments: Any) -> "Program":
        """Return this program with some arguments given."""
        return Program(self.function, {**self.bound, **arguments})

    def run(
        self, *arguments: Any, backend: Backend | None = None, stream: bool = False, **keywords: Any
    ) -> State:
        """Run the program and return its state.

        The function runs to its end in the calling thread; with `stream` it goes on in the
        background. Raises what the function raises, and TypeError for arguments that do not fit.
        """
        call, sampling = self._call(arguments, keywords)
        chosen = backend_or_default(backend)
        if stream:
            return start(call, chosen, sampling, streams=True)
        return run_here(call, chosen, sampling)

    __call__ = run

    def stream(self, *arguments: Any, backend: Backend | None = None, **keywords: Any) -> State:
        """Start the program and return its state at once, to read text as it comes."""
        return self.run(*arguments, backend=backend, stream=True, **keywords)

    async def arun(self, *arguments: Any, backend: Backend | None = None, **keywords: Any) -> State:
        """Run the program without blocking the caller's event loop, all of it.

        Being cancelled ends its requests. Raises like `run`.
        """
        call, sampling = self._call(arguments, keywords)
        return await run_async(call, backend_or_default(backend), sampling)

    @overload
    def run_batch(
        self,
        batch: Sequence[Arguments],
        *,
        generator_style: Literal[False] = False,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
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
        backend: Backend | None = None,
        **sampling: Any,
    ) -> list[State] | Iterator[State]:
        """Run the program once per entry of `batch`: keyword arguments, or a tuple of others.

        What all of them begin with is computed once, first. What goes wrong in one program, in
        its function as well, is raised where its state is read.

        num_threads      how many programs may run at once; they need no threads of their own
        generator_style  return an iterator that yields states, in order, as they finish
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


def function(function: Callable[..., Any]) -> Program:
    """Make a program of a function, plain or `async def`; its first parameter is the state."""
    return Program(function)
