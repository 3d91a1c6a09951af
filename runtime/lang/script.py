"""The writing half of a state: everything a program says."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar, cast, overload

from runtime.lang.executor import Executor
from runtime.lang.ir import Begin, End, Expr, Mark, Said, as_expr
from runtime.lang.variables import Value

AnyScript = TypeVar("AnyScript", bound="Script")
# As SGLang spells them.
JOIN_MODES = ("gather_variable", "concate_and_append")


class Script:
    """What a program writes to. Writing never waits; reading, in the subclasses, does.

    A script that nobody holds any more ends what it has under way.

    executor  walks what is said
    """

    def __init__(self, executor: Executor, *, owns: bool = True) -> None:
        """Write to `executor`; with `owns`, end its work when this object goes away."""
        self.executor = executor
        if owns:
            weakref.finalize(self, executor.abandon).atexit = False

    def __iadd__(self: AnyScript, said: "str | Expr | Turn") -> AnyScript:
        # `s += s.system("...")`, as SGLang's tutorial has it: the call has said it already.
        if not (isinstance(said, Turn) and said.is_said_by(self)):
            self.executor.say(as_expr(said))
        return self

    def set_var(self, name: str, value: Any) -> None:
        """Define a variable without saying anything."""
        done: Future[Value] = Future()
        done.set_result(Value(value))
        self.executor.variables[name] = done

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return name in self.executor.variables

    def system(self, said: Said = None) -> "Turn":
        """Say a system message, or open one: `with s.system():`."""
        return Turn(self, "system", said)

    def user(self, said: Said = None) -> "Turn":
        """Say a user's message, or open one."""
        return Turn(self, "user", said)

    def assistant(self, said: Said = None) -> "Turn":
        """Say an assistant's message, or open one."""
        return Turn(self, "assistant", said)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Keep everything said inside the block in a variable, however the block ends."""
        self.executor.say(Mark(name, opens=True))
        try:
            yield
        finally:
            self.executor.say(Mark(name, opens=False))

    def fork(
        self: AnyScript, size: int = 1, position_ids_offset: Sequence[int] | None = None
    ) -> "Forks[AnyScript]":
        """Return `size` states that go on from here, each by itself.

        What is said so far is computed once. Raises ValueError below one.

        position_ids_offset  ignored, as in SGLang: every fork continues at the next position
        """
        if size < 1:
            raise ValueError(f"a fork has at least one state, not {size}")
        return Forks(self, [type(self)(e) for e in self.executor.fork(size, self)])

    @contextmanager
    def copy(
        self: AnyScript, position_ids_offset: Sequence[int] | None = None
    ) -> Iterator[AnyScript]:
        """Go on from here in a state of its own for the length of the block, then join it."""
        forks = self.fork(1, position_ids_offset)
        try:
            yield forks[0]
        finally:
            forks.join()

    def cancel(self) -> None:
        """End what is under way here and in forks, and whatever would follow.

        Reading what was not there yet raises Aborted.
        """
        self.executor.cancel()


class Turn:
    """One turn of a chat: said at once, or open for the length of a `with` block."""

    def __init__(self, script: Script, role: str, said: Said) -> None:
        self._script = script
        self._role = role
        self._said = said is not None
        if said is not None:
            script.executor.say(Begin(role) + as_expr(said) + End(role))

    def is_said_by(self, script: Script) -> bool:
        """Whether this turn stands in `script` as a whole."""
        return self._said and self._script is script

    def __enter__(self) -> None:
        self._script.executor.say(Begin(self._role))

    def __exit__(self, *_: object) -> None:
        self._script.executor.say(End(self._role))


class Forks(Sequence[AnyScript]):
    """The states that a fork made, in order.

    states  as a list
    """

    def __init__(self, parent: AnyScript, states: list[AnyScript]) -> None:
        self.states = states
        self._parent = parent

    def __len__(self) -> int:
        return len(self.states)

    @overload
    def __getitem__(self, index: int) -> AnyScript: ...

    @overload
    def __getitem__(self, index: slice) -> "Forks[AnyScript]": ...

    def __getitem__(self, index: Any) -> "AnyScript | Forks[AnyScript]":
        """Return one state, or several of them as forks of the same parent.

        Raises IndexError, and TypeError for a variable's name: each state has its own variables.
        """
        if isinstance(index, slice):
            return Forks(self._parent, self.states[index])
        if isinstance(index, str):
            raise TypeError(f"forks have no variables, each one has: forks[0][{index!r}]")
        return self.states[index]

    def __setitem__(self, index: int | slice, value: object) -> None:
        """Accept the result of `forks[index] += ...`, which has changed the states already.

        Raises TypeError for anything else: a state cannot be replaced.
        """
        states = self.states[index] if isinstance(index, slice) else [self.states[index]]
        given: list[Any] = cast(Forks[Any], value).states if isinstance(value, Forks) else [value]
        if len(given) != len(states) or any(a is not b for a, b in zip(given, states, strict=True)):
            raise TypeError("a fork cannot be replaced: say something in it by forks[0] += ...")

    def __iadd__(
        self, said: "str | Expr | Sequence[str | Expr] | Callable[[int], str | Expr]"
    ) -> "Forks[AnyScript]":
        """Say the same in each, the entry of a list, or what a function gives for its index.

        Raises ValueError for a list of another length, before anything is said.
        """
        each: Sequence[str | Expr]
        if isinstance(said, str | Expr):
            each = [said] * len(self.states)
        elif callable(said):
            each = [said(index) for index in range(len(self.states))]
        else:
            each = said
        if len(each) != len(self.states):
            raise ValueError(f"{len(self.states)} forks need as many texts, not {len(each)}")
        for state, expr in zip(self.states, [as_expr(own) for own in each], strict=True):
            state.executor.say(expr)
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """Define each new variable of these states, as a list over them, in the parent.

        What is said in the parent afterwards waits until all that was said in these states is
        there. With "concate_and_append" the parent also appends what each state has said since
        the fork, one after the other. Raises ValueError for any other mode.
        """
        if mode not in JOIN_MODES:
            raise ValueError(f"the mode of a join is {' or '.join(JOIN_MODES)}, not {mode!r}")
        executors = [state.executor for state in self.states]
        self._parent.executor.gather(executors, self.states)
        if mode == "concate_and_append":
            self._parent.executor.append_forks(executors, self.states)
