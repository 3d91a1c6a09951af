"""Tokens of one choice to text whose channels are known.

A client of a chat sees reasoning, content and calls instead of the text that was generated. Stop
strings are searched in the content only, and every token is assigned to the channel that shows it.
All positions are characters of the generated text, marks included.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, Protocol

from runtime.tokenizer.detokenizer import Detokenizer
from runtime.tokenizer.stop_strings import StopMatch, StopMatcher, StopTable

Channel = Literal["reasoning", "content", "call"] | None
# A channel, the text that was generated, and the text that is shown in the channel for it: nothing
# where it has no channel.
Run = tuple[Channel, str, str]
TokenChannel = Literal["reasoning", "content"] | None


class Channels(Protocol):
    """Splits the text of one answer into runs, in order; may hold back the end of the text."""

    def push(self, text: str) -> Sequence[Run]:
        """Return the runs that `text` settles."""
        ...

    def finish(self) -> Sequence[Run]:
        """Return what was held back."""
        ...


@dataclass(slots=True)
class _Token:
    """A token that has not been given out.

    start, end  positions of its text; start == end: it has none
    """

    start: int
    end: int
    channel: TokenChannel = None


class ChannelText:
    """Tokens of one choice to text, up to a stop string in the content.

    A token is given out together with its text, and is held back with it: until its channel is
    known, and while its text may be the beginning of a stop string. A stop string does not
    continue across reasoning or a call.

    min_new_tokens  a stop string complete before the token of this number does not count
    trim            leave the matched stop string out of the text
    marks           ids of tokens that have one character of text, whatever they complete
    matched         the stop string that ended the text, once there is one
    channels        of the tokens given out; to be emptied by the reader. A token has the channel
                    that shows any of its text; None: a client sees nothing of it
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        source: Channels,
        stops: StopTable | None,
        *,
        min_new_tokens: int,
        trim: bool,
        marks: Collection[int],
    ) -> None:
        self.matched: str | None = None
        self.channels: list[TokenChannel] = []
        self._detokenizer = detokenizer
        self._source = source
        self._matcher = StopMatcher(stops) if stops is not None else None
        self._min_new_tokens = min_new_tokens
        self._trim = trim
        self._marks = marks
        self._count = 0
        # Where stop strings begin to count, once there are tokens enough.
        self._armed_at: int | None = None
        self._end = self._settled = self._out = 0
        # Text, runs and tokens from `_out` on.
        self._text = ""
        # Beside content only some without a channel: what has another one is not held back.
        self._runs: list[Run] = []
        self._tokens = deque[_Token]()

    def push(self, token_ids: list[int]) -> tuple[str, int]:
        """Return new text, and how many tokens are given out: the oldest that were held back."""
        given, pieces = len(self.channels), list[str]()
        for token_id in token_ids:
            piece = self._spell(token_id)
            if piece:
                pieces.append(self._settle(self._source.push(piece)))
                if self.matched is not None:
                    break
            self._release()
        return "".join(pieces), len(self.channels) - given

    def finish(self) -> tuple[str, int]:
        """Return what was held back, as `push` does; it may complete a stop string."""
        given, piece = len(self.channels), self._detokenizer.finish()
        self._append(piece)
        text = self._settle([*self._source.push(piece), *self._source.finish()])
        if self.matched is None:
            text += self._emit(0)
            self._give(len(self._tokens))
        return text, len(self.channels) - given

    def _spell(self, token_id: int) -> str:
        """Return the text that a token completes."""
        self._count += 1
        if self._armed_at is None and self._count >= self._min_new_tokens:
            self._armed_at = self._end
        incomplete, start = self._detokenizer.held_tokens, self._end
        piece = self._detokenizer.push([token_id])
        self._append(piece)
        end = self._end
        if token_id in self._marks:
            start = end - 1
        elif not piece and self._detokenizer.held_tokens > incomplete:
            # A part of the character that comes next.
            end = start + 1
        self._tokens.append(_Token(start, end))
        return piece

    def _append(self, piece: str) -> None:
        self._text += piece
        self._end += len(piece)

    def _settle(self, runs: Sequence[Run]) -> str:
        """Return the text that may go out after `runs`, up to a stop string."""
        out = ""
        for channel, text, shown in runs:
            at = (self._armed_at or 0) - self._settled
            if 0 < at < len(text) and text == shown:
                # Stop strings begin to count within this run.
                out += self._add(channel, text[:at], text[:at])
                text = shown = text[at:]
            out += self._add(channel, text, shown)
            if self.matched is not None:
                break
        return out

    def _add(self, channel: Channel, text: str, shown: str) -> str:
        armed = self._armed_at is not None and self._settled >= self._armed_at
        self._runs.append((channel, text, shown))
        self._settled += len(text)
        matcher = self._matcher
        if matcher is None:
            return self._emit(0)
        if channel == "content":
            found = matcher.push(shown, armed=armed)
            if isinstance(found, StopMatch):
                return self._end_at(found)
        elif channel is not None:
            matcher.finish()
        return self._emit(matcher.held_chars)

    def _emit(self, kept: int) -> str:
        """Return the runs but for the last `kept` characters that are shown."""
        cut = len(self._runs)
        if kept == 0 and cut == 1:
            return self._pass(*self._runs.pop())
        while kept > 0:
            cut -= 1
            kept -= len(self._runs[cut][2])
        if kept < 0:
            channel, text, shown = self._runs[cut]
            # The spelling of a mark goes out as the mark, which cannot be split.
            if text == shown:
                head, tail = text[:-kept], text[-kept:]
                self._runs[cut : cut + 1] = [(channel, head, head), (channel, tail, tail)]
                cut += 1
        pieces = [self._pass(*run) for run in self._runs[:cut]]
        del self._runs[:cut]
        return "".join(pieces)

    def _pass(self, channel: Channel, text: str, _: str = "") -> str:
        """Return the text of a run that goes out; its tokens are those of its channel."""
        start, self._out = self._out, self._out + len(text)
        self._text = self._text[len(text) :]
        if channel == "content" or channel == "reasoning":
            for token in self._tokens:
                if token.start >= self._out:
                    break
                if token.end > start:
                    token.channel = channel
        return text

    def _end_at(self, found: StopMatch) -> str:
        """End the text at a stop string whose last character is in the last of the runs."""
        self.matched = found.stop
        _, text, shown = self._runs[-1]
        after = len(found.rest) - len(found.stop) if text == shown else 0
        used = sum(token.start < self._settled - after for token in self._tokens)
        if self._trim:
            text = self._before(len(found.rest))
        else:
            end = max(token.end for token in islice(self._tokens, used))
            text = self._text[: end - self._out]
            for run in self._runs:
                self._pass(*run)
        self._give(used)
        return text

    def _before(self, cut: int) -> str:
        """Return the text of the runs but for the last `cut` characters that are shown."""
        left = sum(len(shown) for _, _, shown in self._runs) - cut
        pieces: list[str] = []
        for channel, text, shown in self._runs:
            if left <= 0:
                break
            if len(shown) <= left:
                pieces.append(self._pass(channel, text))
            else:
                self._pass(channel, text[:left])
                pieces.append(shown[:left])
            left -= len(shown)
        return "".join(pieces)

    def _release(self) -> None:
        """Give out the tokens whose text has gone out."""
        tokens = self._tokens
        while tokens and tokens[0].end <= self._out:
            self.channels.append(tokens.popleft().channel)

    def _give(self, count: int) -> None:
        self.channels.extend(self._tokens.popleft().channel for _ in range(count))
