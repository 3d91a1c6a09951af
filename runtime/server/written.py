"""Messages of a chat as the very token ids that a model wrote, in place of their text.

While the chat is rendered, a mark stands for each such answer; its ids are then put where the
mark's are. So everything around it is what the format makes of it. Where the format changes an
answer, or has no place of its own for one, the answer's text counts.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from runtime.server.segments import Segment, plain_segments
from runtime.tokenizer.tokenizer import TextTokenizer


class Written(msgspec.Struct, frozen=True):
    """A message in pieces.

    message   its index
    segments  text, which never means a control token, token ids, or answers that a stop string
              ended; they spell its content
    """

    message: int
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that a mark stands for.

    mark         the text of it, and its ids
    ids          of the answer
    open_tokens  trailing ids that come from text
    """

    mark: str
    mark_ids: list[int]
    ids: list[int]
    open_tokens: int


def make_answer(tokenizer: TextTokenizer, segments: Sequence[Segment]) -> Answer | None:
    """Return an answer's ids, and a mark for it; None where its text spells a control token."""
    ids: list[int] = []
    open_tokens = 0
    for segment in plain_segments(tokenizer, segments):
        if isinstance(segment, str):
            new = tokenizer.encode(segment, add_special_tokens=False) if segment else []
            if not tokenizer.added_ids.isdisjoint(new):
                return None
            open_tokens += len(new)
        else:
            new, open_tokens = segment, 0
        ids += new
    mark = uuid.uuid4().hex
    return Answer(mark, tokenizer.encode(mark, add_special_tokens=False), ids, open_tokens)


def put_in(ids: list[int], answers: Sequence[Answer]) -> tuple[list[int], int] | None:
    """Return a chat's ids with answers, in order, where their marks were; and its open tokens.

    None where a mark is not to be found.
    """
    merged: list[int] = []
    done = 0
    for answer in answers:
        at = _find(ids, answer.mark_ids, done)
        if at is None:
            return None
        merged += ids[done:at] + answer.ids
        done = at + len(answer.mark_ids)
    rest = ids[done:]
    return merged + rest, len(rest) or answers[-1].open_tokens


def _find(ids: list[int], wanted: list[int], start: int) -> int | None:
    while wanted:
        try:
            start = ids.index(wanted[0], start)
        except ValueError:
            break
        if ids[start : start + len(wanted)] == wanted:
            return start
        start += 1
    return None
