"""Answers of every chat format: in whatever pieces they come, the parts are the same."""

import json
from typing import Any

from hypothesis import strategies as st

from runtime.chat.answer_formats import MARKS
from runtime.chat.answer_parser import AnswerParser, Part, joined
from runtime.chat.call_writer import CallPiece
from runtime.chat.marks import DSML, SPELLING, THINK, THINK_END
from tests.fuzz.mutation import cuts
from tests.fuzz.target import Target
from tests.runtime.chat.families import FAMILIES, TOOLS, family_format

_FORMATS = ("v4", *FAMILIES)
# A byte below the number of pieces stands for one of them, another for a character.
_PIECES = (
    *MARKS,
    *MARKS.values(),
    *(
        "\n",
        "\n\n",
        " ",
        "{",
        "}",
        "[",
        "]",
        '"',
        ",",
        ":",
        ";",
        "```",
        "```json\n",
        "\\",
        "<",
        "</",
    ),
    *('{"name": "get_weather", "arguments": {"city": "Oslo"}}', '"parameters": {', "functions."),
    *('{"name": "noop", "parameters": {}}', "get_weather", "noop", "function", "analysis"),
    *("commentary to=functions.noop ", "final", "json", "é", "\U0001f680", "null", "1e5", "-"),
    *(f'<{DSML}invoke name="get_weather">\n', f"</{DSML}invoke>", f"<{DSML}tool_calls>\n"),
    *(f"<{DSML}function_calls>\n", f"</{DSML}tool_calls>", f"</{DSML}function_calls>"),
    *(f'<{DSML}parameter name="city" string="true">', f"</{DSML}parameter>", "｜DSML｜"),
    f'<{DSML}parameter name="days" string="false">2</{DSML}parameter>\n',
)
_FLAGS = 5
_TOOLS = 1 << 3


def _text(data: bytes, name: str, flags: int) -> list[str]:
    """Return the pieces; a mark that the server never puts into such an answer is spelled."""
    if name == "v4":
        known = set(SPELLING)
    else:
        known = set(family_format(name).marks(tools=bool(flags & _TOOLS)).values())
    spelled = str.maketrans({mark: text for mark, text in MARKS.items() if mark not in known})
    pieces = (_PIECES[b] if b < len(_PIECES) else chr(b) for b in data)
    return [piece.translate(spelled) for piece in pieces]


def _parser(name: str, flags: int) -> Any:
    reasoning, parallel, separate, tools, opened = (bool(flags >> k & 1) for k in range(_FLAGS))
    offered = TOOLS if tools else None
    options = {"reasoning": reasoning, "parallel": parallel, "separate": separate}
    if name == "v4":
        return AnswerParser(tools=offered, **options)
    return family_format(name).parser(tools=offered, opened=opened, **options)


def _parts(name: str, flags: int, pieces: list[str]) -> list[Part]:
    parser = _parser(name, flags)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined(parts + parser.finish())


def _check(data: bytes) -> None:
    if len(data) < 2:
        return
    name, flags = _FORMATS[data[0] % len(_FORMATS)], data[1]
    tokens = _text(data[2:], name, flags)
    text = "".join(tokens)
    whole = _parts(name, flags, [text] if text else [])
    characters = [text[k : k + len(piece)] for k, piece in _places(text, sum(data))]
    for pieces in (tokens, list(text), characters):
        assert _parts(name, flags, pieces) == whole, (name, flags, pieces)
    for part in whole:
        if isinstance(part, CallPiece) and part.ended:
            assert isinstance(json.loads(part.arguments), dict), (name, part)


def _places(text: str, seed: int) -> list[tuple[int, bytes]]:
    places: list[tuple[int, bytes]] = []
    at = 0
    for piece in cuts(bytes(len(text)), seed):
        places.append((at, piece))
        at += len(piece)
    return places


_BYTE = st.one_of(st.integers(0, len(_PIECES) - 1), st.integers(0, 255))
ANSWERS = Target("answers", st.lists(_BYTE, max_size=40).map(bytes), _check, 150)
assert len(_PIECES) < 256
assert {THINK, THINK_END, DSML} <= set(_PIECES)
