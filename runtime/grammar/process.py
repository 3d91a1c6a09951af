"""One grammar in a process of its own: compiles it, then says what each output may go on with.

Compiling can take forever or all memory, and so can finding the next mask of an ambiguous
grammar, both inside native code that cannot be interrupted. Here a timer is armed over every
piece of work and its signal has the default action, so that the kernel ends the process wherever
it is; memory is limited by the kernel as well. Whoever asked sees the socket close.
"""

import contextlib
import functools
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from runtime.errors import GrammarError
from runtime.grammar.ebnf import Rules
from runtime.grammar.patterns import text_rule
from runtime.grammar.schema_rules import schema_text
from runtime.grammar.structural_tags import prepare_tag
from runtime.grammar.utf8 import START, Utf8Guard
from runtime.grammar.wire import (
    Accept,
    Channel,
    Close,
    Compile,
    Compiled,
    Failed,
    FromGrammar,
    Mask,
    Open,
    ToGrammar,
)
from runtime.messages import Grammar

if TYPE_CHECKING:
    from xgrammar import BatchGrammarMatcher, CompiledGrammar, GrammarCompiler, GrammarMatcher
    from xgrammar import Grammar as CompilersGrammar

_WORD_BITS = 32
_MESSAGE_CHARS = 400
# Masks that are asked for at once are made by several threads, unless they are few.
_THREADS = min(8, os.cpu_count() or 1)
_STACK_BYTES = 16 << 20
_FEW = 8


def _by_limit(messages: list[ToGrammar]) -> Iterator[list[ToGrammar]]:
    """Yield the messages with what compiles by itself: outputs that wait give it no more time."""
    first = next((k for k, one in enumerate(messages, 1) if isinstance(one, Compile)), 0)
    for part in (messages[:first], messages[first:]):
        if part:
            yield part


@dataclass(frozen=True, slots=True)
class GrammarTools:
    """What all grammars of a checkpoint are made with.

    vocab_size  number of token ids of the network
    """

    compiler: "GrammarCompiler"
    guard: Utf8Guard
    vocab_size: int


class GrammarProcess:
    """Serves one grammar on a blocking socket until the other end closes it."""

    def __init__(self, end: socket.socket, tools: GrammarTools) -> None:
        self._channel: Channel[ToGrammar] = Channel(end, ToGrammar)
        self._tools = tools
        self._words = -(-tools.vocab_size // _WORD_BITS)
        self._compiled: CompiledGrammar | None = None
        self._matchers: dict[int, GrammarMatcher] = {}
        self._utf8: dict[int, int] = {}
        self._limit_s = 0.0

    def run(self) -> None:
        """Answer messages; returns when nobody asks any more, or after `Failed`."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        with contextlib.suppress(EOFError, OSError):
            while True:
                for messages in _by_limit(self._channel.receive()):
                    try:
                        with self._timed(messages):
                            replies = self._handle(messages)
                    except (GrammarError, RuntimeError, ValueError, MemoryError) as fault:
                        self._channel.send(Failed(_reason(fault)))
                        return
                    # Sent with the timer off: it blocks for as long as nobody reads.
                    for first in range(0, len(replies), _FEW):
                        self._channel.send(*replies[first : first + _FEW])

    @contextlib.contextmanager
    def _timed(self, messages: list[ToGrammar]) -> Iterator[None]:
        """Let the kernel end this process should the block take too long for what it was asked."""
        for message in messages:
            if isinstance(message, Compile):
                self._limit_s = message.limit_s
        signal.setitimer(signal.ITIMER_REAL, self._limit_s * len(messages))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, messages: list[ToGrammar]) -> list[FromGrammar]:
        """Return the answers; the masks that all ask for are made together."""
        from xgrammar import GrammarMatcher

        replies: list[FromGrammar] = []
        asking: dict[int, GrammarMatcher] = {}
        for message in messages:
            match message:
                case Compile():
                    _limit_memory(message.memory_bytes)
                    with _warnings_are_errors():
                        self._compiled = compile_grammar(self._tools.compiler, message.grammar)
                    replies.append(Compiled())
                case Open(slot):
                    assert self._compiled is not None
                    self._utf8[slot] = START
                    asking[slot] = self._matchers[slot] = GrammarMatcher(self._compiled)
                case Accept(slot, token):
                    state = self._tools.guard.follow(self._utf8[slot], token)
                    if state is None or not self._matchers[slot].accept_token(token):
                        raise GrammarError(f"token {token} does not follow the grammar")
                    self._utf8[slot] = state
                    asking[slot] = self._matchers[slot]
                case Close(slot):
                    for table in (self._matchers, self._utf8, asking):
                        table.pop(slot, None)
        return [*replies, *self._masks(asking)]

    def _masks(self, asking: dict[int, "GrammarMatcher"]) -> list[Mask]:
        """Return the masks of these slots."""
        bits = np.zeros((len(asking), self._words), dtype=np.int32)
        if len(asking) < _FEW:
            for line, matcher in enumerate(asking.values()):
                matcher.fill_next_token_bitmask(bits, line)
        else:
            self._together.batch_fill_next_token_bitmask([*asking.values()], bits)
        bits &= self._tools.guard.masks[[self._utf8[slot] for slot in asking]]
        if not bits.any(axis=1).all():
            raise GrammarError("no token of this model can go on with the grammar")
        return [Mask(slot, line.tobytes()) for line, slot in zip(bits, asking, strict=True)]

    @functools.cached_property
    def _together(self) -> "BatchGrammarMatcher":
        from xgrammar import BatchGrammarMatcher

        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        return BatchGrammarMatcher(max_threads=_THREADS)


def compile_grammar(compiler: "GrammarCompiler", grammar: Grammar) -> "CompiledGrammar":
    """Return a grammar compiled. Raises GrammarError or RuntimeError for one that is wrong."""
    if grammar.kind == "structural_tag" and not grammar.calls:
        # The compiler alone knows tokens by their spelling, which a tag may name.
        return compiler.compile_structural_tag(_tag(grammar.text))
    from xgrammar import Grammar as CompilersGrammar

    rules = _rules(grammar)
    if grammar.calls:
        calls = CompilersGrammar.from_structural_tag(_tag(grammar.calls))
        rules = CompilersGrammar.union(rules, calls)
    return compiler.compile_grammar(rules)


def _rules(grammar: Grammar) -> "CompilersGrammar":
    """Return what a grammar says, its calls left out."""
    from xgrammar import Grammar as CompilersGrammar

    match grammar.kind:
        case "json_object":
            return CompilersGrammar.from_ebnf(schema_text({"type": "object"}))
        case "json_schema":
            return CompilersGrammar.from_ebnf(schema_text(_decoded(grammar.text)))
        case "regex":
            rules = Rules()
            root = rules.add("text", text_rule(rules, grammar.text))
            return CompilersGrammar.from_ebnf(rules.text(root))
        case "ebnf":
            return CompilersGrammar.from_ebnf(grammar.text)
        case "structural_tag":
            return CompilersGrammar.from_structural_tag(_tag(grammar.text))


def _tag(text: str) -> str:
    """Return a structural tag whose schemas hold. Raises GrammarError."""
    tag = _decoded(text)
    prepare_tag(tag)
    return _json(tag)


def _decoded(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.ValidationError:
        raise GrammarError("the grammar has a number that is too large to be read") from None
    except (msgspec.DecodeError, RecursionError) as fault:
        raise GrammarError(f"the grammar is no JSON: {fault}") from None


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _limit_memory(more_bytes: int) -> None:
    """Let the kernel refuse memory beyond what the process has and `more_bytes`; no core file.

    Threads' stacks come on top, once there are threads.
    """
    with open("/proc/self/statm", encoding="ascii") as facts:
        pages = int(facts.read().split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit + _THREADS * _STACK_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextlib.contextmanager
def _warnings_are_errors() -> Iterator[None]:
    """Raise GrammarError for what native code prints to stderr inside the block.

    The compiler says there, and only there, what it cannot enforce and leaves out.
    """
    kept = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        printed.seek(0)
        text = printed.read(4 * _MESSAGE_CHARS).decode(errors="replace")
    if "Warning: " in text:
        # Behind the semicolon stands what the compiler would do instead.
        raise GrammarError(_without_source(text).partition("; ")[0])


def _reason(fault: Exception) -> str:
    if isinstance(fault, MemoryError) or "bad_alloc" in str(fault):
        return "the grammar takes too much memory"
    if isinstance(fault, UnicodeDecodeError):
        # What the compiler says quotes the grammar byte by byte.
        return _without_source(fault.object.decode(errors="replace"))
    return _without_source(str(fault)) or type(fault).__name__


def _without_source(text: str) -> str:
    """Strip time, place and condition in the compiler's source from what it says, and cut it."""
    line = next((part for part in text.splitlines() if part.strip()), "")
    if line.startswith("[") and ".cc:" in line:
        line = line.partition(".cc:")[2].partition(": ")[2].removeprefix("Warning: ")
    if line.startswith("Check failed: "):
        line = line.partition(" is false: ")[2] or "the grammar is malformed"
    return line.strip()[:_MESSAGE_CHARS]
