"""The five workloads: each a few numbers, which are its flags, and the calls they make.

The same numbers, seed and vocabulary give the same calls on every machine.
"""

import random
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.bench.serving.workload import Call, Workload


def _flag(default: int | float | str, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


class Recipe(Protocol):
    """A dataclass of numbers that makes calls."""

    def build(self, rng: random.Random, vocab_size: int) -> Workload:
        """Return the calls, their token ids drawn from `rng`."""
        ...


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Questions that share system prompts, in random order."""

    prefixes: int = _flag(64, "different system prompts")
    questions: int = _flag(16, "questions after each of them")
    system_tokens: int = _flag(2048, "tokens of a system prompt")
    user_tokens: int = _flag(128, "tokens of a question")
    output_tokens: int = _flag(256, "tokens of an answer")

    def build(self, rng: random.Random, vocab_size: int) -> Workload:
        """Return one call for each question."""
        systems = [_ids(rng, vocab_size, self.system_tokens) for _ in range(self.prefixes)]
        calls = [
            Call(_ids(rng, vocab_size, self.user_tokens), self.output_tokens, system=system)
            for system in systems
            for _ in range(self.questions)
        ]
        rng.shuffle(calls)
        return Workload("shared-prefix", calls)


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """Conversations that share one system prompt; each turn waits for the answer before it."""

    sessions: int = _flag(32, "conversations")
    turns: int = _flag(4, "turns of each")
    system_tokens: int = _flag(8192, "tokens of the shared system prompt")
    user_tokens: int = _flag(1024, "tokens a user says in a turn")
    output_tokens: int = _flag(128, "tokens of an answer")

    def build(self, rng: random.Random, vocab_size: int) -> Workload:
        """Return the turns of one conversation after the other."""
        system = _ids(rng, vocab_size, self.system_tokens)
        calls: list[Call] = []
        for _ in range(self.sessions):
            for turn in range(self.turns):
                calls.append(
                    Call(
                        _ids(rng, vocab_size, self.user_tokens),
                        self.output_tokens,
                        parent=len(calls) - 1 if turn else None,
                        system=() if turn else system,
                        group=f"turn {turn + 1}",
                    )
                )
        return Workload("multi-turn", calls)


@dataclass(frozen=True, slots=True)
class AgentTree:
    """Agents that fork: every answer is gone on from in several ways at once."""

    trees: int = _flag(8, "trees, each from a task of its own")
    depth: int = _flag(3, "calls from a root to a leaf")
    branch: int = _flag(3, "ways in which an answer is gone on from")
    system_tokens: int = _flag(4096, "tokens that all trees begin with: rules and tools")
    root_tokens: int = _flag(2048, "tokens of a task")
    step_tokens: int = _flag(256, "tokens that one step adds: a result of a tool")
    output_tokens: int = _flag(128, "tokens of an answer")

    def build(self, rng: random.Random, vocab_size: int) -> Workload:
        """Return the trees, each level by level."""
        system = _ids(rng, vocab_size, self.system_tokens)
        calls: list[Call] = []
        for _ in range(self.trees):
            task = _ids(rng, vocab_size, self.root_tokens)
            level = [len(calls)]
            calls.append(Call(task, self.output_tokens, system=system, group="level 1"))
            for depth in range(2, self.depth + 1):
                parents, level = level, []
                for parent in [parent for parent in parents for _ in range(self.branch)]:
                    level.append(len(calls))
                    step = _ids(rng, vocab_size, self.step_tokens)
                    calls.append(
                        Call(step, self.output_tokens, parent=parent, group=f"level {depth}")
                    )
        return Workload("agent-tree", calls)


@dataclass(frozen=True, slots=True)
class LongContext:
    """Few long prompts that share nothing, shortest first, each followed by decoding."""

    lengths: str = _flag("65536,262144,1048576", "prompt lengths in tokens, comma-separated")
    count: int = _flag(1, "prompts of each length")
    output_tokens: int = _flag(256, "tokens of an answer")

    def build(self, rng: random.Random, vocab_size: int) -> Workload:
        """Return one call for each prompt. Raises ValueError for lengths that are no numbers."""
        lengths = sorted(int(length) for length in self.lengths.split(","))
        calls = [
            Call(_ids(rng, vocab_size, length), self.output_tokens, group=f"{length} tokens")
            for length in lengths
            for _ in range(self.count)
        ]
        return Workload("long-context", calls)


@dataclass(frozen=True, slots=True)
class RandomPrompts:
    """Prompts that share nothing."""

    requests: int = _flag(64, "prompts")
    input_tokens: int = _flag(1024, "tokens of the longest prompt")
    output_tokens: int = _flag(128, "tokens of the longest answer")
    range_ratio: float = _flag(1.0, "shortest length as a share of the longest, 0 to 1")

    def build(self, rng: random.Random, vocab_size: int) -> Workload:
        """Return one call for each prompt. Raises ValueError for a share that is none."""
        if not 0 <= self.range_ratio <= 1:
            raise ValueError("--range-ratio must be between 0 and 1")
        calls = [
            Call(
                _ids(rng, vocab_size, self._length(rng, self.input_tokens)),
                self._length(rng, self.output_tokens),
            )
            for _ in range(self.requests)
        ]
        return Workload("random", calls)

    def _length(self, rng: random.Random, most: int) -> int:
        return rng.randint(max(1, int(most * self.range_ratio)), most)


RECIPES: dict[str, type[Any]] = {
    "shared-prefix": SharedPrefix,
    "multi-turn": MultiTurn,
    "agent-tree": AgentTree,
    "long-context": LongContext,
    "random": RandomPrompts,
}


def _ids(rng: random.Random, vocab_size: int, count: int) -> list[int]:
    return rng.choices(range(vocab_size), k=count)
