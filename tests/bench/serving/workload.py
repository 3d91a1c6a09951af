"""What is asked of a server: calls, some of which go on from the answer of another."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Call:
    """One request, in the benchmark's own tokens.

    parent         index of the call whose prompt and answer it goes on from; None: a new start
    system         token ids of the system prompt; empty where there is a parent
    user           token ids of what the user says
    output_tokens  answered at most, and exactly where the server takes `ignore_eos`
    group          what it is reported with ("turn 2"); "" where there are no groups
    """

    user: Sequence[int]
    output_tokens: int
    parent: int | None = None
    system: Sequence[int] = ()
    group: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls, every parent before its children.

    children  indices of the calls that go on from each call
    roots     indices of the calls that begin by themselves, in the order of their arrival
    Raises ValueError for a parent that does not come first.
    """

    name: str
    calls: Sequence[Call]
    children: list[list[int]] = field(init=False)
    roots: list[int] = field(init=False)

    def __post_init__(self) -> None:
        children: list[list[int]] = [[] for _ in self.calls]
        roots: list[int] = []
        for index, call in enumerate(self.calls):
            if call.parent is None:
                roots.append(index)
            elif 0 <= call.parent < index and not call.system:
                children[call.parent].append(index)
            else:
                raise ValueError(f"call {index} cannot go on from call {call.parent}")
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "roots", roots)
