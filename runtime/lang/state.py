"""The reading half of a state: `s["x"]` waits for it, `await s["x"]` in an async program."""

from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Literal, TypeVar, overload

from runtime.lang.bodies import wait, wait_over
from runtime.lang.executor import Executor
from runtime.lang.failures import bare
from runtime.lang.script import Script
from runtime.lang.text_log import Follower
from runtime.lang.variables import Value
from runtime.lang.waiting import arrival, over

Result = TypeVar("Result")


class Readable(Script):
    """What both kinds of states know of the body that writes to them.

    Of the state that its caller holds:

    ended    the promise of what the body returns; None elsewhere
    outcome  the promise that the run is over: its body, all that was said, its forks and the
             programs it ran; None elsewhere. It fails with what the run fails with
    """

    def __init__(
        self,
        executor: Executor,
        *,
        owns: bool = True,
        ended: "Future[Any] | None" = None,
        outcome: "Future[None] | None" = None,
    ) -> None:
        super().__init__(executor, owns=owns)
        self.ended = ended
        self.outcome = outcome

    def __repr__(self) -> str:
        """Say what has been walked so far, and whether it went wrong; waits for nothing."""
        failure = self.executor.failure
        failed = "" if failure is None else f", {type(failure).__name__}: {failure}"
        return f"{type(self).__name__}({self.executor.log.text()!r}{failed})"

    def unnamed(self, name: str | None) -> "Future[None] | None":
        """Return what to wait for while the body has yet to define `name`; None: nothing."""
        news = self.executor.log.news
        if name is None or name in self.executor.variables:
            return None
        return None if self.ended is None or self.ended.done() else news

    def promise(self, name: str) -> "Future[Value]":
        """Return the promise of a variable. Raises KeyError, or what ended the body, without."""
        if name not in self.executor.variables and self.ended is not None:
            self.ended.result()
        return self.executor.read(name)

    def follow(self, name: str | None) -> "tuple[Follower, Future[Any]]":
        """Return a reader of text, and the promise that there will be no more."""
        end: Future[Any] = self.promise(name) if name is not None else self._everything()
        end.add_done_callback(lambda _: self.executor.log.wake())
        return self.executor.log.follow(name), end

    def _everything(self) -> "Future[None]":
        """Return the promise that the run is over, and so is all that was said here afterwards."""
        outcome = self.outcome
        if outcome is None:
            return self.executor.settled()
        everything: Future[None] = Future()

        def pass_on(promise: "Future[None]") -> None:
            if (error := promise.exception()) is not None:
                everything.set_exception(error)
            elif promise is outcome:
                self.executor.settled().add_done_callback(pass_on)
            else:
                everything.set_result(None)

        outcome.add_done_callback(pass_on)
        return everything

    def _read(self, promise: "Future[Result]", name: str | None = None) -> "Result":
        """Return the result of a promise that is done. Raises its failure, which is read then."""
        if (error := promise.exception()) is not None:
            self.executor.mark_read(error, name)
            raise bare(error)
        return promise.result()

    @overload
    def text_async_iter(
        self, var_name: str | None = None, return_meta_data: Literal[False] = False
    ) -> AsyncIterator[str]:
        """Yield text."""
        ...

    @overload
    def text_async_iter(
        self, var_name: str | None = None, *, return_meta_data: Literal[True]
    ) -> AsyncIterator[tuple[str, Any]]:
        """Yield text with facts."""
        ...

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """Yield the text, or one variable's, as it grows, in any event loop.

        Raises what went wrong, after the text there was.

        return_meta_data  yield pairs of a text and of what the backend has told with it, None for
                          text that no model wrote. If it tells more at the end of a variable, the
                          last pair has that with an empty text
        """
        while (defined := self.unnamed(var_name)) is not None:
            await arrival(defined)
        follower, end = self.follow(var_name)
        facts: Any = None
        while True:
            news, ends = self.executor.log.news, end.done()
            for text, facts in follower.take_facts():
                yield (text, facts) if return_meta_data else text
            if ends:
                value = self._read(end, var_name)
                if return_meta_data and value is not None and value.meta_info != facts:
                    yield "", value.meta_info
                return
            await arrival(news)


class State(Readable):
    """A program's state for synchronous code: reading waits, and raises what went wrong."""

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __str__(self) -> str:
        """Wait like `sync`; return the text there is, and what went wrong after it."""
        everything = self._everything()
        wait_over(everything)
        error = everything.exception()
        failed = "" if error is None else f"[{type(error).__name__}: {error}]"
        return self.executor.log.text() + failed

    def get_var(self, name: str) -> Any:
        """Return a variable once it is there. Raises KeyError for an unknown name."""
        return self._value(name).value

    def get_meta_info(self, name: str) -> Any:
        """Return what the backend told about a variable: counts, log-probabilities."""
        return self._value(name).meta_info

    def text(self) -> str:
        """Return everything said so far, as one text; of a chat, the contents of its turns."""
        self.sync()
        return self.executor.log.text()

    def messages(self) -> list[dict[str, str]]:
        """Return the closed turns of a chat."""
        self.sync()
        return self.executor.messages()

    def sync(self) -> None:
        """Wait until everything said so far is there. Raises what went wrong."""
        everything = self._everything()
        wait_over(everything)
        self._read(everything)

    def error(self) -> BaseException | None:
        """Wait like `sync`; return what went wrong instead of raising it."""
        everything = self._everything()
        wait_over(everything)
        if (error := everything.exception()) is not None:
            self.executor.mark_read(error)
        return error

    @property
    def ret_value(self) -> Any:
        """What the program's function returned. Raises what it raised."""
        return None if self.ended is None else wait(self.ended)

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yield the text, or one variable's, as it grows.

        Raises what went wrong, after the text there was.
        """
        while (defined := self.unnamed(var_name)) is not None:
            wait(defined)
        follower, end = self.follow(var_name)
        while True:
            news, ends = self.executor.log.news, end.done()
            yield from follower.take()
            if ends:
                self._read(end, var_name)
                return
            wait(news)

    def _value(self, name: str) -> Value:
        while (defined := self.unnamed(name)) is not None:
            wait(defined)
        promise = self.promise(name)
        wait_over(promise)
        return self._read(promise, name)


class AsyncState(Readable):
    """A program's state for `async def` functions: what waits is awaited."""

    def __getitem__(self, name: str) -> Coroutine[Any, Any, Any]:
        return self.get_var(name)

    async def get_var(self, name: str) -> Any:
        """Return a variable once it is there. Raises KeyError for an unknown name."""
        return (await self._value(name)).value

    async def get_meta_info(self, name: str) -> Any:
        """Return what the backend told about a variable."""
        return (await self._value(name)).meta_info

    async def text(self) -> str:
        """Return everything said so far."""
        await self.sync()
        return self.executor.log.text()

    async def messages(self) -> list[dict[str, str]]:
        """Return the closed turns of a chat."""
        await self.sync()
        return self.executor.messages()

    async def sync(self) -> None:
        """Wait until everything said so far is there. Raises what went wrong."""
        everything = self._everything()
        await over(everything)
        self._read(everything)

    async def _value(self, name: str) -> Value:
        promise = self.promise(name)
        await over(promise)
        return self._read(promise, name)
