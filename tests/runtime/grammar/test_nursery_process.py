"""The nursery as a child process: it forks, says why it cannot, and goes when asked."""

import select
from pathlib import Path

import msgspec

from runtime.grammar.nursery import NurserySettings
from runtime.grammar.nursery_process import NurseryProcess
from runtime.grammar.wire import Channel, Compile, Compiled, FromGrammar
from runtime.messages import Grammar

START_S = 60.0


def heard(nursery: NurseryProcess) -> str | None:
    assert select.select([nursery], [], [], START_S)[0]
    return nursery.failure()


def test_each_socket_gets_a_process_of_its_own(nursery: NurseryProcess) -> None:
    channels: list[Channel[FromGrammar]] = [Channel(nursery.start(), FromGrammar) for _ in range(3)]

    for channel in channels:
        channel.send(Compile(Grammar("regex", "a"), 20.0, 1 << 29))

    assert [channel.receive() for channel in channels] == [[Compiled()]] * 3
    for channel in channels:
        channel.close()


def test_it_says_why_it_cannot(settings: NurserySettings, tmp_path: Path) -> None:
    nursery = NurseryProcess(msgspec.structs.replace(settings, tokenizer_path=str(tmp_path)))

    reason = heard(nursery)

    assert reason is not None
    assert "tokenizer.json" in reason
    assert heard(nursery) == "the process that starts grammars ended"
    nursery.close()


def test_closing_ends_it_whatever_it_is_doing(settings: NurserySettings) -> None:
    nursery = NurseryProcess(settings)

    nursery.close()

    assert nursery._process.returncode is not None
