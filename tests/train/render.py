"""Dialogues to token ids and loss weights, exactly as the server would have them in its context.

The part before the first user's turn comes from the server's own encoder. The turns are put
together here, because that encoder takes long for a conversation of hundreds of turns; a test
holds the two against each other.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from runtime.chat.marks import ASSISTANT, DSML, EOS, SPELLING, THINK, THINK_END, USER
from runtime.chat.v4_encoder import V4Encoder
from tests.train.dialogue import Call, Dialogue, Turn

# Loss weights as the shards store them, in tenths.
WEIGHT_UNIT = 10
SAID, CONTEXT, PADDING = 10, 1, 0
# Token id of the padding in the default model's tokenizer.
PAD_ID = 2


@dataclass(frozen=True, slots=True)
class Row:
    """A rendered dialogue: token ids, and for each the weight of predicting it, in tenths.

    dialogue  what is in the row of the dialogue that it was made from
    """

    ids: list[int]
    weights: list[int]
    dialogue: Dialogue


# A text or a control token, and its weight.
_Piece = tuple[str | int, int]


class Renderer:
    """Renders dialogues for one tokenizer that knows V4's control tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encoder = V4Encoder(tokenizer)
        self._heads: dict[str, list[int]] = {}
        self._eos, self._user, self._assistant = (self._id(name) for name in (EOS, USER, ASSISTANT))
        marks = (THINK, THINK_END, DSML)
        self._think, self._think_end, self._dsml = (self._id(SPELLING[mark]) for mark in marks)

    def rows(self, dialogues: Sequence[Dialogue], tokens: int) -> list[Row | None]:
        """Return each dialogue up to the last exchange that fits into `tokens`, and spare ones.

        None for one of which nothing fits. In a thinking dialogue without tools only the last
        exchange has its reasoning: the format drops it from all earlier ones.
        """
        plans = [_Plan(self, dialogue) for dialogue in dialogues]
        texts = [
            p for plan in plans for piece in plan.pieces for p, _ in piece if isinstance(p, str)
        ]
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids_of = iter(encoding.ids for encoding in encoded)
        return [plan.fit(tokens, plan.encode(ids_of)) for plan in plans]

    def packed(
        self, rows: Sequence[Row], tokens: int
    ) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
        """Return rows as padded arrays, both [rows, tokens]."""
        ids = np.full((len(rows), tokens), PAD_ID, np.uint16)
        weights = np.full((len(rows), tokens), PADDING, np.uint8)
        for number, row in enumerate(rows):
            ids[number, : len(row.ids)] = row.ids
            weights[number, : len(row.ids)] = row.weights
        return ids, weights

    def distance(self, dialogue: Dialogue, number: int) -> int | None:
        """Return how many tokens are between the source of a checked turn and that turn.

        None where the check names no source, or it is nowhere before the turn.
        """
        check = dialogue.turns[number].check
        if check is None or not check.source:
            return None
        between = 0
        for turn in reversed(dialogue.turns[:number]):
            found = turn.content.rfind(check.source)
            if found >= 0:
                return between + self._length(turn.content[found + len(check.source) :])
            between += self._length(turn.content) + 3
        return None

    def head(self, dialogue: Dialogue) -> list[int]:
        """Return what precedes the first user's turn."""
        system = [turn for turn in dialogue.turns if turn.role == "system"]
        only = Dialogue(
            [*system, Turn("user", "")],
            tools=dialogue.tools,
            response_format=dialogue.response_format,
            thinking=dialogue.thinking,
            effort=dialogue.effort,
        )
        request = only.request(len(only.turns))
        key = json.dumps(request)
        if key not in self._heads:
            if len(self._heads) > 10_000:
                self._heads.clear()
            ids = self._encoder.encode(request).token_ids
            self._heads[key] = ids[: ids.index(self._user)]
        return self._heads[key]

    def pieces(self, turns: Sequence[Turn], *, mode: str) -> list[_Piece]:
        """Return one exchange in pieces.

        mode  "think" with its reasoning, "chat" without; "past" is a thinking one afterwards
        """
        pieces: list[_Piece] = []
        results: list[str] = []
        for turn in turns:
            if turn.role == "tool":
                results.append(f"<tool_result>{turn.content}</tool_result>")
            elif turn.role == "user":
                pieces += [(self._user, CONTEXT), (turn.content, CONTEXT)]
            else:
                if results:
                    pieces += [(self._user, CONTEXT), ("\n\n".join(results), CONTEXT)]
                    results = []
                pieces += self._answer(turn, think=mode == "think")
        return [piece for piece in pieces if piece[0] != ""]

    def decoded(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without control tokens."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=True)

    def _answer(self, turn: Turn, *, think: bool) -> list[_Piece]:
        pieces: list[_Piece] = [(self._assistant, CONTEXT)]
        if think:
            pieces += [(self._think, CONTEXT), (turn.reasoning, SAID), (self._think_end, SAID)]
        else:
            pieces.append((self._think_end, CONTEXT))
        marked = turn.content + _block(turn.tool_calls)
        for number, text in enumerate(marked.split(DSML)):
            pieces += [(self._dsml, SAID)] if number else []
            pieces.append((text, SAID))
        return [*pieces, (self._eos, SAID)]

    def _id(self, name: str) -> int:
        token_id = self._tokenizer.token_to_id(name)
        assert token_id is not None, name
        return token_id

    def _length(self, text: str) -> int:
        return len(self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


_Encoded = tuple[list[int], list[int]]


class _Plan:
    """A dialogue in pieces: its exchanges as they are and, where that differs, as they end it."""

    def __init__(self, renderer: Renderer, dialogue: Dialogue) -> None:
        self._dialogue = dialogue
        self._head = renderer.head(dialogue)
        whole = _exchanges(dialogue.turns)
        self._exchanges = [*whole, *map(list, dialogue.spare)]
        self._whole = len(whole)
        self._drops = dialogue.thinking and not dialogue.tools
        mode = "think" if dialogue.thinking else "chat"
        first = "past" if self._drops else mode
        self.pieces = [renderer.pieces(exchange, mode=first) for exchange in self._exchanges]
        if self._drops:
            self.pieces += [renderer.pieces(exchange, mode=mode) for exchange in self._exchanges]

    def encode(self, ids_of: Iterator[list[int]]) -> list[_Encoded]:
        """Return ids and weights of each of `pieces`; takes the texts' ids from `ids_of`."""
        encoded: list[_Encoded] = []
        for pieces in self.pieces:
            ids: list[int] = []
            weights: list[int] = []
            for piece, weight in pieces:
                new = next(ids_of) if isinstance(piece, str) else [piece]
                ids += new
                weights += [weight] * len(new)
            encoded.append((ids, weights))
        return encoded

    def fit(self, tokens: int, encoded: list[_Encoded]) -> Row | None:
        """Return a row of at most `tokens`: what fits of the dialogue, then of the spare."""
        count = len(self._exchanges)
        lasts = encoded[count:] if self._drops else encoded
        kept: list[int] = []
        used, full = len(self._head), False
        for number in range(count):
            if (number >= self._whole or not full) and used + len(lasts[number][0]) <= tokens:
                kept.append(number)
                used += len(encoded[number][0])
            else:
                full = True
        while kept and used - len(encoded[kept[-1]][0]) + len(lasts[kept[-1]][0]) > tokens:
            used -= len(encoded[kept.pop()][0])
        if not kept:
            return None
        ids, weights = list(self._head), [CONTEXT] * len(self._head)
        for more, their in [*(encoded[number] for number in kept[:-1]), lasts[kept[-1]]]:
            ids += more
            weights += their
        system = [turn for turn in self._dialogue.turns if turn.role == "system"]
        turns = [turn for number in kept for turn in self._exchanges[number]]
        return Row(ids, weights, replace(self._dialogue, turns=[*system, *turns], spare=[]))


def _exchanges(turns: Sequence[Turn]) -> list[list[Turn]]:
    exchanges: list[list[Turn]] = []
    for turn in turns:
        if turn.role == "user":
            exchanges.append([turn])
        elif turn.role != "system":
            exchanges[-1].append(turn)
    return exchanges


def _block(calls: Sequence[Call]) -> str:
    """Return the calls as V4 writes them, the DSML token as its mark."""
    if not calls:
        return ""
    lines: list[str] = []
    for call in calls:
        lines.append(f'<{DSML}invoke name="{call.name}">\n')
        for name, value in call.arguments.items():
            text = isinstance(value, str)
            written = value if text else json.dumps(value, ensure_ascii=False)
            kind = "true" if text else "false"
            lines.append(
                f'<{DSML}parameter name="{name}" string="{kind}">{written}</{DSML}parameter>\n'
            )
        lines.append(f"</{DSML}invoke>\n")
    return f"\n\n<{DSML}tool_calls>\n{''.join(lines)}</{DSML}tool_calls>"
