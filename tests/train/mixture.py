"""Which conversations the model is trained on, in which shares, and how they are put together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType

from tests.train.dialogue import Dialogue, Turn
from tests.train.tasks.copying import Copying
from tests.train.tasks.counting import Counting
from tests.train.tasks.facts import NOTED, Facts
from tests.train.tasks.filler import Filler
from tests.train.tasks.json_format import JsonFormat
from tests.train.tasks.needle import Needles
from tests.train.tasks.overview import Overview
from tests.train.tasks.pairs import Pairs
from tests.train.tasks.routing import Routing
from tests.train.tasks.small_talk import SmallTalk
from tests.train.tasks.sums import Sums
from tests.train.tasks.thread import Thread, size_of
from tests.train.tasks.tool_calls import ToolCalls
from tests.train.tasks.votes import Votes

THINKING_SHARE = 0.3
# Of the thinking dialogues, those whose effort is the one that V4 takes if nothing is said.
HIGH_EFFORT_SHARE = 0.6
SYSTEM_SHARE = 0.2
# Threads of short rows are interrupted by prose of a twelfth of the row at most.
_FILLER_PART = 12
# Of a row of votes alone, the longest list: so that there are several to ask about.
_VOTES_PART = 0.4
# Lists of votes that are asked about only after some prose.
_APART_SHARE = 0.8
# Pairs asked by their value: the harder way round.
_REVERSE_SHARE = 0.45
_SYSTEMS = (
    "You are a helpful assistant.", "Answer in short sentences.", "You are Umbra.",
    "You are a friendly assistant. Answer every question.", "Be short and clear.",
    "You help people with their questions.",
)  # fmt: skip

THREADS: Mapping[str, Callable[[Random, int], Thread]] = MappingProxyType(
    {
        # The longer the conversation, the fewer of its exchanges state something.
        "facts": lambda rng, tokens: Facts(rng, state_share=0.35 if tokens <= 1024 else 0.22),
        "pairs": lambda rng, tokens: Pairs(
            rng, most=min(16 + tokens // 64, 60), reverse_share=_REVERSE_SHARE
        ),
        "needle": lambda rng, tokens: Needles(rng, longest=_longest(tokens)),
        "overview": lambda rng, tokens: Overview(rng, longest=_longest(tokens)),
        "votes": lambda rng, tokens: Votes(rng, longest=_longest(tokens), apart_share=_APART_SHARE),
        "copying": lambda rng, tokens: Copying(rng),
        "counting": lambda rng, tokens: Counting(rng),
        "sums": lambda rng, tokens: Sums(rng),
        "routing": lambda rng, tokens: Routing(rng),
        "small_talk": lambda rng, tokens: SmallTalk(rng),
        "json_format": lambda rng, tokens: JsonFormat(rng, with_schema=False),
    }
)
# How likely a thread is to be part of a dialogue.
_SHARES: Mapping[str, float] = MappingProxyType(
    {
        "facts": 5.0, "pairs": 3.0, "needle": 2.0, "overview": 1.5, "votes": 1.5,
        "copying": 2.0, "counting": 1.8, "sums": 1.5, "routing": 1.0, "small_talk": 1.0,
        "json_format": 1.0,
    }
)  # fmt: skip
# Tasks that take a dialogue of their own, and how many dialogues of all are theirs.
_TOOL_SHARE, _SCHEMA_SHARE = 0.16, 0.08
# Rows of fewer tokens hold little beside the definitions of tools, or a long text.
_SHORT, _LONG = 1024, 4096
_SPARE = 6
# What is made for a row is an estimate, and the rest is cut off.
_ABUNDANCE = 1.12


def weave(rng: Random, strands: Sequence[tuple[Thread, float]], tokens: int) -> list[Turn]:
    """Return about `tokens` of turns, each exchange of a strand taken at random by its weight."""
    threads = [thread for thread, _ in strands]
    weights = [weight for _, weight in strands]
    turns: list[Turn] = []
    at = 0
    while at < tokens:
        exchange = rng.choices(threads, weights)[0].step(at)
        at += size_of(exchange)
        turns.extend(exchange)
    return turns


def sample(rng: Random, tokens: int) -> Dialogue:
    """Return a dialogue of the mixture of about `tokens` tokens, rather more."""
    form = rng.random()
    tools = _TOOL_SHARE if tokens > _SHORT else _TOOL_SHARE / 2
    # A conversation of thousands of tokens about one schema is nobody's.
    if form < _SCHEMA_SHARE and tokens < _LONG:
        dialogue = schema_dialogue(rng, tokens)
    elif form < _SCHEMA_SHARE + tools:
        dialogue = tool_dialogue(rng, tokens)
    else:
        dialogue = Dialogue(weave(rng, _strands(rng, tokens), int(tokens * _ABUNDANCE) + 20))
        if tokens <= _SHORT:
            small = [Sums(rng), Counting(rng), SmallTalk(rng), Routing(rng), Copying(rng)]
            dialogue.spare = [rng.choice(small).step(0) for _ in range(_SPARE)]
    _add_system(rng, dialogue)
    dialogue.thinking = rng.random() < THINKING_SHARE
    dialogue.effort = "high" if rng.random() < HIGH_EFFORT_SHARE else "low"
    return dialogue


def _add_system(rng: Random, dialogue: Dialogue) -> None:
    """Begin some dialogues with a system's turn, which may be the first statement of all."""
    turns = dialogue.turns
    if rng.random() >= SYSTEM_SHARE:
        return
    text = rng.choice(_SYSTEMS)
    if turns[1].content == NOTED and rng.random() < 0.7:
        text = f"{text} {turns[0].content}" if rng.random() < 0.7 else turns[0].content
        del turns[:2]
    turns.insert(0, Turn("system", text))


def tool_dialogue(rng: Random, tokens: int) -> Dialogue:
    """Return a dialogue with tools, some of whose exchanges need none."""
    calls = ToolCalls(rng)
    strands: list[tuple[Thread, float]] = [(calls, 1.0)]
    if rng.random() < 0.5 or tokens >= _LONG:
        strands += [(thread, weight * 0.3) for thread, weight in _strands(rng, tokens)]
    return Dialogue(weave(rng, strands, int(tokens * _ABUNDANCE)), tools=calls.tools)


def schema_dialogue(rng: Random, tokens: int) -> Dialogue:
    """Return a dialogue whose answers all fit one schema."""
    thread = JsonFormat(rng, with_schema=True)
    turns = weave(rng, [(thread, 1.0)], int(tokens * _ABUNDANCE))
    return Dialogue(turns, response_format=thread.response_format)


def votes_dialogue(rng: Random, tokens: int) -> Dialogue:
    """Return a dialogue about votes, in half of the cases with more texts about other things."""
    votes = Votes(rng, longest=int(tokens * _VOTES_PART), apart_share=_APART_SHARE)
    strands: list[tuple[Thread, float]] = [(votes, 1.0)]
    if rng.random() < 0.5:
        strands.append((Filler(rng, max(40, tokens // _FILLER_PART)), rng.uniform(0.1, 0.3)))
    return Dialogue(
        weave(rng, strands, int(tokens * _ABUNDANCE)), thinking=rng.random() < THINKING_SHARE
    )


def training(seed: int, tokens: int, number: int, *, whole: bool = False) -> Iterator[Dialogue]:
    """Yield the dialogues of training shard `number`, for ever.

    whole  of votes alone
    """
    rng = Random(f"train {seed} {tokens} {number}")
    while True:
        yield votes_dialogue(rng, tokens) if whole else sample(rng, tokens)


def _longest(tokens: int) -> int:
    """Return the tokens of the longest text in a row of `tokens`."""
    return int(tokens * (0.35 if tokens <= _SHORT else 0.6))


def _strands(rng: Random, tokens: int) -> list[tuple[Thread, float]]:
    names: list[str] = []
    for _ in range(rng.choice((1, 1, 2, 3) if tokens < _LONG else (2, 3, 4))):
        names += rng.choices(list(_SHARES), list(_SHARES.values()))
    strands = [(THREADS[name](rng, tokens), rng.uniform(0.3, 1.0)) for name in dict.fromkeys(names)]
    # Texts that are long themselves come less often than questions about them.
    if rng.random() < 0.5:
        strands.append((Filler(rng, max(40, tokens // _FILLER_PART)), rng.uniform(0.02, 0.2)))
    return strands
