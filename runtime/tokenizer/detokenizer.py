"""Token ids to text as they come, one choice at a time.

Text goes out only when no later token can change it, so that the pieces joined are what
decoding all tokens at once gives (byte-level tokenizers; a byte-fallback one may rewrite an
earlier character when invalid bytes follow it, which no stream can take back).
"""

from collections.abc import Mapping
from types import MappingProxyType

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# A character has at most 4 bytes, so that at most 3 tokens can be the beginning of one.
_MOST_INCOMPLETE = 3
_MOST_HELD = 16
_NO_MARKS: Mapping[int, str] = MappingProxyType({})


class Detokenizer:
    """Incremental text of one sequence of tokens.

    backend   None: there is no text, every piece is ""
    hidden    ids that are left out of the text (special tokens, when they are skipped)
    marks     text that stands for an id instead of its own, hidden or not
    """

    def __init__(
        self,
        backend: Tokenizer | None,
        hidden: frozenset[int],
        marks: Mapping[int, str] = _NO_MARKS,
    ) -> None:
        self._backend = backend
        self._hidden = hidden
        self._marks = marks
        self._stream = DecodeStream(skip_special_tokens=False)
        self._held: list[int] = []

    @property
    def held_tokens(self) -> int:
        """How many tokens are held back: parts of a character that is not complete."""
        return len(self._held)

    def push(self, token_ids: list[int]) -> str:
        """Return the text that `token_ids` complete."""
        if self._marks and not self._marks.keys().isdisjoint(token_ids):
            return self._push_marked(token_ids)
        return self._push(token_ids)

    def _push_marked(self, token_ids: list[int]) -> str:
        pieces: list[str] = []
        start = 0
        for at, token_id in enumerate(token_ids):
            mark = self._marks.get(token_id)
            if mark is not None:
                # A character that a mark interrupts stays incomplete.
                pieces += [self._push(token_ids[start:at]), self.finish(), mark]
                start = at + 1
        return "".join([*pieces, self._push(token_ids[start:])])

    def _push(self, token_ids: list[int]) -> str:
        backend = self._backend
        if backend is None:
            return ""
        # Ids without text are not even shown to the stream, which would keep and decode them
        # again with every later token.
        hidden, spelling = self._hidden, backend.id_to_token
        shown = [i for i in token_ids if i not in hidden and spelling(i) is not None]
        if not shown:
            return ""
        self._held += shown
        try:
            # A list is taken for an id first, and the failure of that is half of what a step costs.
            piece = self._stream.step(backend, shown[0] if len(shown) == 1 else shown)
        # tokenizers raises bare Exception where the text changed under the stream (see above).
        except Exception:
            return self.finish()
        if piece is not None:
            self._held.clear()
            return piece
        return self._settle(backend) if len(self._held) >= _MOST_HELD else ""

    def finish(self) -> str:
        """Return what is left: an incomplete character comes out as U+FFFD."""
        if self._backend is None or not self._held:
            return ""
        text = self._backend.decode(self._held, skip_special_tokens=False)
        self._restart(self._backend, [])
        return text

    def _settle(self, backend: Tokenizer) -> str:
        """Give out a run of tokens that end amid a character, all but the last of them.

        Without this a model that repeats one such token would cost quadratic time.
        """
        whole = backend.decode(self._held, skip_special_tokens=False)
        for kept in range(1, _MOST_INCOMPLETE + 1):
            head, tail = self._held[:-kept], self._held[-kept:]
            text = backend.decode(head, skip_special_tokens=False)
            rest = backend.decode(tail, skip_special_tokens=False)
            # Cutting through a character, or through the beginning of one, would show as one
            # U+FFFD more: equal texts mean that the cut lies between characters. A tail without
            # text would show nothing.
            if rest and text + rest == whole:
                self._restart(backend, tail)
                return text
        return ""

    def _restart(self, backend: Tokenizer, held: list[int]) -> None:
        self._stream = DecodeStream(skip_special_tokens=False)
        self._held = held
        if held:
            self._stream.step(backend, held)
