"""Segments of a prompt: text, token ids, and answers that a stop string ended."""

from collections import deque
from collections.abc import Sequence

import msgspec

from runtime.tokenizer.tokenizer import TextTokenizer

# What stands for bytes of a character that is not whole yet.
_NO_CHARACTER = "\ufffd"


class Ended(msgspec.Struct, frozen=True):
    """An answer that a stop string ended.

    text  of the answer, without the stop string
    ids   all that the model wrote: they spell the text, the stop string and perhaps more
    """

    text: str
    ids: list[int]


Segment = str | list[int] | Ended


def segment_ids(segment: Segment) -> list[int]:
    """Return the ids that a segment names; none for text."""
    if isinstance(segment, Ended):
        return segment.ids
    return segment if isinstance(segment, list) else []


def segment_text(segment: Segment) -> str:
    """Return the text that a segment gives as text."""
    if isinstance(segment, Ended):
        return segment.text
    return segment if isinstance(segment, str) else ""


def plain_segments(tokenizer: TextTokenizer, segments: Sequence[Segment]) -> list[str | list[int]]:
    """Return text and ids alone, which spell the same.

    The ids of an answer that a stop string ended are kept as far as they spell the answer, and
    further while they spell the text segment that follows: often it begins with the stop string.
    What remains of both texts is one text.
    """
    plain: list[str | list[int]] = []
    left = deque(segments)
    while left:
        segment = left.popleft()
        if not isinstance(segment, Ended):
            plain.append(segment)
            continue
        text = segment.text
        if left and isinstance(following := left[0], str):
            text += following
            left.popleft()
        ids, chars = _spelling(tokenizer, segment.ids, text)
        plain += [part for part in (ids, text[chars:]) if part]
    return plain


def _spelling(tokenizer: TextTokenizer, ids: list[int], text: str) -> tuple[list[int], int]:
    """Return as many first `ids` as spell a beginning of `text`, and how long that is."""

    def spelled(count: int) -> str:
        return tokenizer.decode(ids[:count], skip_special_tokens=True)

    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(spelled(middle).rstrip(_NO_CHARACTER)):
            low = middle
        else:
            high = middle - 1
    while low and not text.startswith(spelled(low)):
        low -= 1
    return ids[:low], len(spelled(low)) if low else 0
