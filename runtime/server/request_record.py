"""Records of requests: their calls, tokens and times, for the access log and for traces.

Requests are recorded only if one of these is switched on: see `create_app`.
"""

import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.messages import Output
from runtime.server.request_id import plain_request_id
from runtime.tokenizer.observer import ChoiceEnd, Observer, Stage

__all__ = ["CallRecord", "ChoiceRecord", "RecordRequests", "Recorder", "RequestRecord", "Watch"]


@dataclass(slots=True)
class ChoiceRecord:
    """One choice of a call. Durations in seconds.

    begun      whether its prompt was computed; before that there are no times of stages
    queue_s, prefill_s, grammar_s, chunks   see `Output`
    reason     why it ended, None while it runs
    seconds    from the call to the end
    decode_s   None where it was cut off
    """

    index: int
    begun: bool = False
    queue_s: float = 0.0
    prefill_s: float = 0.0
    grammar_s: float = 0.0
    chunks: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])
    reason: str | None = None
    seconds: float = 0.0
    decode_s: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class _Forwarding(Observer):
    """Forwards each event to another observer."""

    def __init__(self, inner: Observer) -> None:
        self._inner = inner

    def stage(self, stage: Stage, seconds: float) -> None:
        """Forward it."""
        self._inner.stage(stage, seconds)

    def first_token(self, seconds: float) -> None:
        """Forward it."""
        self._inner.first_token(seconds)

    def inter_token(self, seconds: float, tokens: int) -> None:
        """Forward it."""
        self._inner.inter_token(seconds, tokens)

    def finished(self, end: ChoiceEnd) -> None:
        """Forward it."""
        self._inner.finished(end)

    def refused(self, reason: str) -> None:
        """Forward it."""
        self._inner.refused(reason)


class CallRecord(_Forwarding):
    """One call of a request: keeps the events of it, and forwards them.

    label          the client's name for it
    started_s      clock reading when it came in
    sent_s         when it went to the scheduler; None before
    first_token_s  when a client that streams could have its first token
    refusal        why it was not admitted
    choices        those with an event so far, by index
    """

    def __init__(
        self, inner: Observer, label: str | None, *, started_s: float, traced: bool
    ) -> None:
        super().__init__(inner)
        self.traced = traced
        self.label = label
        self.started_s = started_s
        self.sent_s: float | None = None
        self.first_token_s: float | None = None
        self.refusal: str | None = None
        self.choices: dict[int, ChoiceRecord] = {}

    def stage(self, stage: Stage, seconds: float) -> None:
        """Note when the call was sent."""
        super().stage(stage, seconds)
        if stage == "tokenize":
            self.sent_s = self.started_s + seconds

    def begun(self, index: int, first: Output) -> None:
        """Note how long a choice took until its first output."""
        choice = self._choice(index)
        choice.begun = True
        choice.queue_s, choice.prefill_s = first.queue_s, first.prefill_s
        choice.chunks, choice.grammar_s = first.chunks, first.grammar_s

    def first_token(self, seconds: float) -> None:
        """Note when the first choice had its first token."""
        super().first_token(seconds)
        if self.first_token_s is None:
            self.first_token_s = self.started_s + seconds

    def finished(self, end: ChoiceEnd) -> None:
        """Note the end of a choice."""
        super().finished(end)
        choice = self._choice(end.index)
        choice.reason, choice.seconds, choice.decode_s = end.reason, end.seconds, end.decode_s
        choice.prompt_tokens, choice.cached_tokens = end.prompt_tokens, end.cached_tokens
        choice.completion_tokens = end.completion_tokens

    def refused(self, reason: str) -> None:
        """Note that the call was not admitted."""
        super().refused(reason)
        self.refusal = reason

    def _choice(self, index: int) -> ChoiceRecord:
        return self.choices.setdefault(index, ChoiceRecord(index))

    @property
    def answered_s(self) -> float | None:
        """Time of its first token, by the scheduler's times where the client does not stream."""
        if self.first_token_s is not None or self.sent_s is None:
            return self.first_token_s
        begun = [c.queue_s + c.prefill_s for c in self.choices.values() if c.begun]
        return self.sent_s + min(begun) if begun else None


@dataclass(slots=True)
class RequestRecord:
    """One HTTP request and its outcome.

    scope      as ASGI has it
    started_s  clock reading when its head had arrived; `started_ns` is the Unix time of it
    ended_s    when its reply had ended, or its client had gone
    status     of the reply; None where there was none
    traced     whether the scheduler sends more of its calls, see `Generate.traced`
    calls      in the order in which they were made
    """

    scope: Scope
    started_s: float
    started_ns: int
    ended_s: float = 0.0
    status: int | None = None
    traced: bool = False
    calls: list[CallRecord] = field(default_factory=list[CallRecord])

    def header(self, name: bytes) -> str | None:
        """Return a header of the request, its values joined by commas."""
        values = [value.decode("latin-1") for key, value in self.scope["headers"] if key == name]
        return ",".join(values) if values else None

    @property
    def rid(self) -> str | None:
        """Its id: the client's `rid`, else its X-Request-Id."""
        labels = (call.label for call in self.calls if call.label is not None)
        plain = plain_request_id(self.scope)
        return next(labels, None) or (plain.decode() if plain is not None else None)

    @property
    def choices(self) -> list[ChoiceRecord]:
        """All choices of all calls."""
        return [choice for call in self.calls for choice in call.choices.values()]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts; that of several choices counts once."""
        return sum(choice.prompt_tokens for choice in self._firsts())

    @property
    def cached_tokens(self) -> int:
        """Those of them that came from the cache."""
        return sum(choice.cached_tokens for choice in self._firsts())

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(choice.completion_tokens for choice in self.choices)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None where there was none."""
        times = [at for call in self.calls if (at := call.answered_s) is not None]
        return min(times) - self.started_s if times else None

    def _firsts(self) -> list[ChoiceRecord]:
        return [call.choices[min(call.choices)] for call in self.calls if call.choices]


# Called when a request begins; what it returns is called when the reply has ended.
Watch = Callable[[RequestRecord], Callable[[], None] | None]

_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


class Recorder(_Forwarding):
    """Adds each call to the record of the request that is being answered."""

    def of_call(self, label: str | None, *, started_s: float) -> Observer:
        """Return the record of the call; outside of a request the inner observer."""
        record = _current.get()
        if record is None:
            return self._inner
        call = CallRecord(self._inner, label, started_s=started_s, traced=record.traced)
        record.calls.append(call)
        return call


class RecordRequests:
    """ASGI middleware that records each request.

    watches  get the record at the beginning and at the end of a request
    clock    the manager's, by which calls are timed
    """

    def __init__(
        self, app: ASGIApp, *, watches: Sequence[Watch], clock: Callable[[], float]
    ) -> None:
        self._app = app
        self._watches = watches
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on between the two calls of each watch."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(scope, self._clock(), time.time_ns())
        ends = [watch(record) for watch in self._watches]

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        token = _current.set(record)
        try:
            await self._app(scope, receive, noting)
        finally:
            _current.reset(token)
            record.ended_s = self._clock()
            for end in ends:
                if end is not None:
                    end()
