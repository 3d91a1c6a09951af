"""The process that grammar processes are forked from, so that each is there at once.

It loads the compiler and the vocabulary, seconds of work, and then forks once for each socket it
is handed. It never compiles: nothing a client sent reaches it. It has one thread, or a fork might
copy a lock that somebody holds.

Run as `python -m runtime.grammar.nursery DESCRIPTOR SETTINGS`.
"""

import gc
import os
import signal
import socket
import sys
from pathlib import Path

import msgspec

from runtime.collector import paused_collector
from runtime.errors import GrammarError
from runtime.grammar.process import GrammarProcess, GrammarTools
from runtime.grammar.utf8 import Utf8Guard
from runtime.grammar.vocabulary import load_token_bytes
from runtime.grammar.wire import Channel, Compiled, Failed, FromGrammar

# Read by numeric libraries when they are loaded: threads of theirs would not survive a fork. And by
# the C library: what its threads allocate counts to the memory that a grammar may take.
ENVIRONMENT = {
    "MALLOC_ARENA_MAX": "1",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


_NICE = 5


class NurserySettings(msgspec.Struct, frozen=True):
    """What the processes share.

    tokenizer_path  folder of tokenizer.json
    vocab_size      number of token ids of the network
    eos_token_ids   what a complete output may end with
    """

    tokenizer_path: str
    vocab_size: int
    eos_token_ids: list[int]


def load_tools(settings: NurserySettings) -> GrammarTools:
    """Return a compiler for a checkpoint's vocabulary. Raises GrammarError."""
    if not settings.eos_token_ids:
        raise GrammarError("grammars need a model with an end token")
    try:
        with paused_collector():
            from xgrammar import GrammarCompiler, TokenizerInfo, VocabType
    except ImportError as fault:
        raise GrammarError(f"grammars need xgrammar, which cannot be loaded: {fault}") from None
    vocabulary = load_token_bytes(Path(settings.tokenizer_path), settings.vocab_size)
    info = TokenizerInfo(
        vocabulary,
        VocabType.RAW,
        vocab_size=settings.vocab_size,
        stop_token_ids=settings.eos_token_ids,
    )
    compiler = GrammarCompiler(info, max_threads=1, cache_enabled=False)
    return GrammarTools(compiler, Utf8Guard(vocabulary), settings.vocab_size)


def main(descriptor: int, settings: NurserySettings) -> None:
    """Fork a grammar process for every socket that arrives; return when nobody can send more."""
    # Steps come first where cores are few, also before what is loaded here; those that are forked
    # have the same priority.
    os.nice(_NICE)
    # When to stop is said by closing the socket; a terminal signals every process at once.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    channel: Channel[FromGrammar] = Channel(control, FromGrammar)
    try:
        tools = load_tools(settings)
    except GrammarError as fault:
        channel.send(Failed(fault.message))
        return
    # What is loaded now is never garbage; left alone, it stays shared with the children.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        channel.send(Compiled())
    except OSError:
        return
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except ConnectionError:
            return
        if not descriptors:
            return
        if os.fork() == 0:
            control.close()
            _serve(descriptors[0], tools)
        os.close(descriptors[0])


def _serve(descriptor: int, tools: GrammarTools) -> None:
    """Be a grammar's process; never returns."""
    status = 1
    try:
        # What native code prints may quote what a client sent.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        GrammarProcess(socket.socket(fileno=descriptor), tools).run()
        status = 0
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=NurserySettings))
