"""One choice of a generation: what the scheduler said of it, as text that a client may see."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from runtime.messages import Output
from runtime.packed_logprobs import PromptLogprobs, TokenLogprobs
from runtime.tokenizer.channel_text import TokenChannel
from runtime.tokenizer.detokenizer import Detokenizer
from runtime.tokenizer.stop_strings import StopMatcher, StopTable

# Tokens and log-probabilities of one choice that streams, a hundred bytes each: a reader that is
# merely slow has fewer.
MOST_UNREAD_ENTRIES = 1 << 16


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a choice ended.

    matched  the stop token id or stop string, for "stop"
    message  text for "abort" and "error"
    """

    type: Literal["stop", "length", "abort", "error"]
    matched: int | str | None = None
    message: str | None = None


@dataclass(slots=True)
class Delta:
    """News of one choice since its last Delta; news that nobody fetched is merged.

    index              choice, 0 .. n-1
    text               new text, stop strings cut off; held back while it may be the beginning of
                       a stop string or of a character
    token_ids          new tokens, whether or not their text is out; where the call has channels
                       and they matter, a token comes with its text
    completion_tokens  so far, a matched stop token included
    logprobs           of `token_ids`
    channels           of `token_ids`, but for a stop token that is not spelled; empty where the
                       call has none
    """

    index: int
    text: str
    token_ids: list[int]
    finish: Finish | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prompt_logprobs: PromptLogprobs | None = None
    logprobs: TokenLogprobs | None = None
    channels: list[TokenChannel] = field(default_factory=list[TokenChannel])


class TokenText(Protocol):
    """Tokens of one choice to text.

    matched   the stop string that ended the text, once there is one
    channels  of the tokens given out, if they are known; to be emptied by the reader
    """

    matched: str | None
    channels: list[TokenChannel]

    def push(self, token_ids: list[int]) -> tuple[str, int]:
        """Return new text and how many tokens are given out, the oldest first.

        After a match the others do not belong to the text.
        """
        ...

    def finish(self) -> tuple[str, int]:
        """Return what was held back, likewise; it may complete a stop string."""
        ...


class ChoiceText:
    """Tokens of one choice to text, up to a stop string anywhere in it.

    min_new_tokens  a stop string complete before the token of this number does not count
    trim            leave the matched stop string out of the text
    matched         the stop string that ended the text, once there is one
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: StopTable | None, *, min_new_tokens: int, trim: bool
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stops) if stops is not None else None
        self._min_new_tokens = min_new_tokens
        self._trim = trim
        self._tokens = 0
        self.matched: str | None = None
        self.channels: list[TokenChannel] = []

    def push(self, token_ids: list[int]) -> tuple[str, int]:
        """Return new text and how many of `token_ids` belong to it: all, or up to a stop string."""
        if self._matcher is None:
            return self._detokenizer.push(token_ids), len(token_ids)
        pieces: list[str] = []
        for used, token_id in enumerate(token_ids, start=1):
            self._tokens += 1
            pieces.append(self._search(self._matcher, self._detokenizer.push([token_id])))
            if self.matched is not None:
                return "".join(pieces), used
        return "".join(pieces), len(token_ids)

    def finish(self) -> tuple[str, int]:
        """Return the text still held back; no token is.

        The last characters may complete a stop string.
        """
        text = self._detokenizer.finish()
        if self._matcher is None:
            return text, 0
        text = self._search(self._matcher, text)
        return text if self.matched is not None else text + self._matcher.finish(), 0

    def _search(self, matcher: StopMatcher, piece: str) -> str:
        found = matcher.push(piece, armed=self._tokens >= self._min_new_tokens)
        if isinstance(found, str):
            return found
        self.matched = found.stop
        return found.text if self._trim else found.text + found.rest


class Choice:
    """State of one choice, and its news that nobody has fetched yet.

    request_id  what the scheduler calls it
    streams     tokens come as they are made, so that their times mean something
    finish      set once it has ended
    begun_s       clock reading at the first news, None before
    last_token_s  clock reading, None before there is a token
    """

    def __init__(self, index: int, request_id: int, text: TokenText, *, trim: bool) -> None:
        self.index = index
        self.request_id = request_id
        self.streams = True
        self.finish: Finish | None = None
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self._unread_entries = 0
        self.begun_s: float | None = None
        self.last_token_s: float | None = None
        self._text = text
        self._trim = trim
        self._pieces: list[str] = []
        # Tokens from the last Delta on, and how many of them are given out with the next one.
        self._token_ids: list[int] = []
        self._ready = 0
        self._prompt_logprobs: PromptLogprobs | None = None
        self._logprobs: TokenLogprobs | None = None

    @property
    def unread(self) -> bool:
        """Whether it streams, and its reader does not fetch what there is."""
        return self.streams and self._unread_entries > MOST_UNREAD_ENTRIES

    def feed(self, item: Output) -> None:
        """Take in what the scheduler said; may set `finish`, also before the scheduler does."""
        self._unread_entries += _entries(item)
        self.prompt_tokens = item.prompt_tokens or self.prompt_tokens
        self.cached_tokens = item.cached_tokens or self.cached_tokens
        self._prompt_logprobs = item.prompt_logprobs or self._prompt_logprobs
        spoken = item.token_ids
        if self._trim and item.matched_stop is not None and spoken[-1:] == [item.matched_stop]:
            spoken = spoken[:-1]
        self._add_tokens(item)
        text, tokens = self._text.push(spoken)
        self._give(text, tokens)
        if self._text.matched is not None:
            self.finish = Finish("stop", matched=self._text.matched)
        elif item.finish is not None:
            self._end(Finish(item.finish, matched=item.matched_stop, message=item.error))

    def cut(self, finish: Finish) -> None:
        """End the choice from this side; text held back goes out."""
        self._end(finish)

    def take(self) -> Delta:
        """Return the news since the last call."""
        token_ids, logprobs, ready = self._token_ids, self._logprobs, self._ready
        self._token_ids, self._logprobs, self._ready = [], None, 0
        if ready < len(token_ids):
            token_ids, self._token_ids = token_ids[:ready], token_ids[ready:]
            if logprobs is not None:
                logprobs, self._logprobs = logprobs.part(0, ready), logprobs.part(ready, None)
        channels, self._text.channels = self._text.channels, []
        delta = Delta(
            index=self.index,
            text="".join(self._pieces),
            token_ids=token_ids,
            finish=self.finish,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            prompt_logprobs=self._prompt_logprobs,
            logprobs=logprobs,
            channels=channels,
        )
        self._pieces, self._prompt_logprobs = [], None
        self._unread_entries = 0
        return delta

    def _end(self, finish: Finish) -> None:
        text, tokens = self._text.finish()
        self._give(text, tokens)
        if self._text.matched is not None:
            finish = Finish("stop", matched=self._text.matched)
        else:
            self._give("", len(self._token_ids) - self._ready)
        self.finish = finish

    def _give(self, text: str, tokens: int) -> None:
        self._pieces.append(text)
        self._ready += tokens
        self.completion_tokens += tokens

    def _add_tokens(self, item: Output) -> None:
        self._token_ids += item.token_ids
        if item.logprobs is not None:
            news = item.logprobs.part(0, None)
            if self._logprobs is None:
                self._logprobs = news
            else:
                self._logprobs.extend(news)


def _entries(item: Output) -> int:
    """Return how many tokens and log-probabilities an Output has, by its first position."""
    told, count = item.logprobs, len(item.token_ids)
    each = sum(len(rows[0]) for rows in (told.top, told.picked) if rows) if told else 0
    return count * (1 + each)


def slices(item: Output, tokens: int) -> Iterator[Output]:
    """Yield `item` whole, or as Outputs of at most so many tokens, the finish on the last one."""
    count = len(item.token_ids)
    if count <= tokens:
        yield item
        return
    for start in range(0, count, tokens):
        stop = min(start + tokens, count)
        last = stop == count
        yield msgspec.structs.replace(
            item,
            token_ids=item.token_ids[start:stop],
            logprobs=item.logprobs.part(start, stop) if item.logprobs else None,
            prompt_logprobs=item.prompt_logprobs if start == 0 else None,
            finish=item.finish if last else None,
            matched_stop=item.matched_stop if last else None,
        )
