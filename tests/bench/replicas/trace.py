"""Requests with their times, from Mooncake's traces or from the trace of the cache benchmark.

A line of a Mooncake trace (FAST '25) is a JSON object with timestamp (ms), input_length,
output_length and hash_ids, one for each block of 512 tokens of the prompt. Tokens are made of the
block ids. What these hide is put back: where a prompt continues an earlier conversation, the first
block of its own begins with the earlier prompt's last, partial block, followed by the answer.
"""

import bisect
import functools
import json
import lzma
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 512
PAGE = 256
# Prompt and answer; longer requests are left out, as the cache benchmark does.
LONGEST_TOKENS = 126_000
# Ranges of token ids: of blocks, of answers, of prompts beyond their blocks.
_ANSWERS, _BEYOND, _IDS = 1_500_000_000, 1_900_000_000, 2_000_000_000
# So many tokens at the end of one request identify it in the prompt that continues it.
_TAIL = 64


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a trace.

    arrival_s      seconds since the first one; later if `after` has not ended by then
    prompt_tokens, output_tokens  their numbers, 1 or more
    tokens         returns the prompt and the answer, [prompt + output] int32
    after          number of the request that it continues and waits for, if it does
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    tokens: Callable[[], np.ndarray]
    after: int | None = None


def page_hashes(prompt: np.ndarray) -> list[int]:
    """Return a hash for each whole page of a prompt, which stands for all up to its end."""
    hashes: list[int] = []
    above = 0
    for start in range(0, len(prompt) - PAGE + 1, PAGE):
        above = hash((above, prompt[start : start + PAGE].tobytes()))
        hashes.append(above)
    return hashes


def mooncake_trace(path: Path, *, seed: int = 0, limit: int | None = None) -> list[Call]:
    """Return the requests of a Mooncake trace, in the order of their arrival.

    path   JSON lines, .xz or plain
    seed   0: times as recorded. Else each is moved by up to 3 s either way, the grain at which
           the trace of conversations was recorded
    limit  the first so many only
    Raises ValueError, naming the line, for what is no such trace.
    """
    lines = [line for line in _lines(path) if line.longest <= LONGEST_TOKENS][:limit]
    maker = _TokenMaker(lines)
    draw = random.Random(seed)
    times = [line.time_s + (draw.uniform(-3, 3) if seed else 0.0) for line in lines]
    first = min(times, default=0.0)
    calls = [
        Call(k, at - first, line.prompt, line.output, functools.partial(maker.tokens, k))
        for k, (at, line) in enumerate(zip(times, lines, strict=True))
    ]
    return sorted(calls, key=lambda call: call.arrival_s)


@dataclass(slots=True)
class _Line:
    time_s: float
    prompt: int
    output: int
    blocks: list[int]

    @property
    def longest(self) -> int:
        return self.prompt + self.output


def _lines(path: Path) -> Iterator[_Line]:
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            try:
                row: dict[str, Any] = json.loads(text)
                lengths = int(row["input_length"]), max(1, int(row["output_length"]))
                line = _Line(row["timestamp"] / 1000, *lengths, [int(b) for b in row["hash_ids"]])
            except (ValueError, KeyError, TypeError) as fault:
                raise ValueError(f"{path}:{number}: no request of a Mooncake trace") from fault
            if line.prompt < 1:
                raise ValueError(f"{path}:{number}: a prompt without tokens")
            yield line


class _TokenMaker:
    """Tokens of a trace's requests, from block ids, with conversations joined.

    _spliced    block -> the earlier block whose first tokens it repeats, and how many
    _continued  request -> the first later one that continues it
    """

    def __init__(self, lines: Sequence[_Line]) -> None:
        self._lines = lines
        self._spliced: dict[int, tuple[int, int]] = {}
        self._continued: dict[int, int] = {}
        seen: set[int] = set()
        ended: dict[int, int] = {}
        for k, line in enumerate(lines):
            prefixes = _chain(line.blocks)
            shared = 0
            while shared < len(line.blocks) and prefixes[shared + 1] in seen:
                shared += 1
            before = ended.get(prefixes[shared]) if shared >= 2 else None
            if before is not None:
                self._join(before, k, shared)
            seen.update(prefixes[1:])
            ended[prefixes[min(line.prompt // BLOCK, len(line.blocks))]] = k

    def _join(self, before: int, later: int, shared: int) -> None:
        """Let the block of `later` behind the shared ones begin as the last one of `before`."""
        blocks, rest = self._lines[later].blocks, self._lines[before].prompt % BLOCK
        known = self._lines[before].blocks
        if shared < len(blocks) and blocks[shared] not in self._spliced:
            if rest and len(known) > shared:
                self._spliced[blocks[shared]] = known[shared], rest
            self._continued.setdefault(before, later)

    def tokens(self, number: int) -> np.ndarray:
        """Return prompt and answer of a request."""
        line, prompt = self._lines[number], self._prompt(number)
        answer = (_ANSWERS + number * 4096 + np.arange(line.output)) % _IDS
        if number in self._continued:
            later = self._prompt(self._continued[number])[line.prompt :][: line.output]
            answer[: len(later)] = later
        return np.concatenate([prompt, answer]).astype(np.int32)

    def _prompt(self, number: int) -> np.ndarray:
        line = self._lines[number]
        blocks = [self._block(block) for block in line.blocks]
        known = np.concatenate(blocks)[: line.prompt] if blocks else np.zeros(0, np.int64)
        beyond = _BEYOND + number * 4096 + np.arange(line.prompt - len(known))
        return np.concatenate([known, beyond % _IDS])

    def _block(self, block: int) -> np.ndarray:
        tokens = (block * BLOCK + np.arange(BLOCK, dtype=np.int64)) % _ANSWERS
        if block in self._spliced:
            source, count = self._spliced[block]
            tokens[:count] = self._block(source)[:count]
        return tokens


def _chain(blocks: Sequence[int]) -> list[int]:
    """Return a hash for each number of leading blocks, none included."""
    chain = [0]
    for block in blocks:
        chain.append(hash((chain[-1], block)))
    return chain


def own_trace(
    bench: Path, *, seed: int, sessions: int, requests_per_s: float, running: int = 64
) -> list[Call]:
    """Return the cache benchmark's trace, with arrivals at random at a mean rate.

    bench    folder with its `workload.py`
    running  requests that overlap in the order of the trace
    A turn arrives one second after the turn before it has ended, or later.
    """
    from tests.bench.cache.replay import load_trace

    draw = random.Random(seed)
    calls: list[Call] = []
    ends = _Ends()
    now_s = 0.0
    events = load_trace(bench)(seed=seed, sessions=sessions, running=running, active=4 * running)
    for event in events:
        if event[0] == "finish":
            continue
        tokens, prompt, output = event[2:5]
        after = ends.find(tokens[:prompt])
        calls.append(Call(len(calls), now_s, prompt, output, lambda t=tokens: t, after))
        ends.add(tokens, calls[-1].number)
        now_s += draw.expovariate(requests_per_s)
    return calls


class _Ends:
    """Finds the request whose prompt and answer are the beginning of another prompt."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._known: dict[tuple[int, bytes], int] = {}

    def add(self, tokens: np.ndarray, number: int) -> None:
        if len(tokens) not in self._lengths:
            bisect.insort(self._lengths, len(tokens))
        self._known[len(tokens), tokens[-_TAIL:].tobytes()] = number

    def find(self, prompt: np.ndarray) -> int | None:
        stop = bisect.bisect_right(self._lengths, len(prompt))
        for length in reversed(self._lengths[:stop]):
            tail = prompt[max(0, length - _TAIL) : length].tobytes()
            if (found := self._known.get((length, tail))) is not None:
                return found
        return None
