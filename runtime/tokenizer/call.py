"""One call as the server layer hands it over, and its translation into scheduler requests."""

from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import BadRequest, PromptTooLong
from runtime.messages import Generate, Logprobs, pack_ids
from runtime.sampling import SamplingSpec
from runtime.share import Share
from runtime.tokenizer.channel_text import Channels, ChannelText
from runtime.tokenizer.choice import Choice, ChoiceText, TokenText
from runtime.tokenizer.detokenizer import Detokenizer
from runtime.tokenizer.stop_strings import StopTable
from runtime.tokenizer.tokenizer import TextTokenizer

# Log-probabilities of a prompt that one call may ask for: each takes 300 bytes here, and they come
# all at once.
MAX_PROMPT_LOGPROBS = 1 << 22
# Characters of a text per token of the context: text that fits has four or five.
_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class GenerateCall:
    """One prompt and what to do with it. Exactly one of `input_ids` and `text` is given.

    rid       the client's label: names the call for `abort`, and never leaves this process
    stream    False: the scheduler may keep the tokens until the end
    marks     text that stands for a token id in the answer instead of its own
    channels  makes what splits the answer of one choice into channels: stop strings are then
              searched in the content only, and log-probabilities come with their channel. None:
              the text is not split
    boundaries  positions in the prompt where other prompts are likely to part from it
    share     whose request it is
    timeout_s that it may take; None: the server's own limit
    measured  False: no client's request, left out of what the observer hears and of the counts
    """

    sampling: SamplingSpec
    input_ids: "list[int] | npt.NDArray[np.integer[Any]] | None" = None
    text: str | None = None
    logprobs: Logprobs | None = None
    namespace: str = ""
    priority: int = 0
    share: Share = field(default_factory=Share)
    timeout_s: float | None = None
    stream: bool = True
    rid: str | None = None
    marks: Mapping[int, str] = field(default_factory=dict[int, str])
    channels: Callable[[], Channels] | None = None
    measured: bool = True
    boundaries: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sequence may be."""

    context_tokens: int
    vocab_size: int


def refuse_endless(text: str, tokenizer: TextTokenizer, limits: Limits) -> None:
    """Raise PromptTooLong for a text whose beginning alone is far too long.

    Tokenising takes a minute and gigabytes for the longest text that a body can hold: all the
    others would wait for it, and it would be refused in the end. Takes long, meant for a thread.
    """
    beginning = text[: _LOOKED_AT * limits.context_tokens]
    # Cut off, a text may have a few tokens more: twice the context leaves no doubt.
    if beginning != text and len(tokenizer.encode(beginning)) > 2 * limits.context_tokens:
        raise PromptTooLong(
            f"the prompt has more than {2 * limits.context_tokens} tokens; with at least one new "
            f"token the most is {limits.context_tokens - 1}"
        )


def refuse_long(ids: Sized, limits: Limits) -> None:
    """Raise PromptTooLong for more ids than the context holds.

    Making an array of a list holds the interpreter: of millions of ids, for a second.
    """
    if len(ids) > limits.context_tokens:
        raise PromptTooLong(
            f"the prompt has {len(ids)} tokens; with at least one new token the most is "
            f"{limits.context_tokens - 1}"
        )


def pack_prompt(call: GenerateCall, tokenizer: TextTokenizer, limits: Limits) -> bytes:
    """Return the prompt's ids as little-endian int32; takes long, meant for a thread.

    Raises BadRequest for a prompt that is none, PromptTooLong for an endless text, or for more ids
    than the context holds. Otherwise its length is not judged here.
    """
    if (call.text is None) == (call.input_ids is None):
        raise BadRequest("give either text or input_ids")
    if call.text is not None:
        refuse_endless(call.text, tokenizer, limits)
    elif call.input_ids is not None:
        refuse_long(call.input_ids, limits)
    ids = call.input_ids if call.text is None else tokenizer.encode(call.text)
    array = np.asarray(ids)
    if array.ndim != 1 or not len(array):
        raise BadRequest("the prompt is empty", param="prompt")
    if array.dtype.kind not in "iu":
        raise BadRequest("token ids must be integers", param="input_ids")
    if array.min() < 0 or array.max() >= limits.vocab_size:
        most = limits.vocab_size - 1
        raise BadRequest(f"token ids must lie between 0 and {most}", param="input_ids")
    return pack_ids(array)


def turn_boundaries(prompt: bytes, turn_id: int | None) -> tuple[int, ...]:
    """Return where other prompts are likely to part from one.

    That is behind the token that begins the first turn of a user, where system prompt and tools
    have ended, and behind the one that begins the last.


    prompt   little-endian int32
    turn_id  that token; None: the format of the turns is not known
    """
    if turn_id is None:
        return ()
    starts = np.flatnonzero(np.frombuffer(prompt, "<i4") == turn_id)
    return tuple(sorted({int(starts[0]) + 1, int(starts[-1]) + 1})) if len(starts) else ()


def make_requests(
    call: GenerateCall,
    prompt: bytes,
    limits: Limits,
    *,
    seed: int,
    ids: Iterator[int],
    turn_id: int | None = None,
    traced: bool = False,
) -> list[Generate]:
    """Return one scheduler request per choice.

    prompt  little-endian int32
    seed    used where the call brings none
    ids     request ids, never used before
    turn_id  see `turn_boundaries`
    traced   see `Generate`
    Raises BadSampling or PromptTooLong, BadRequest for too many log-probabilities.
    """
    spec = call.sampling
    _check_logprobs(call, len(prompt) // 4)
    known = {*turn_boundaries(prompt, turn_id), *call.boundaries}
    boundaries = tuple(sorted(known))
    count, context = len(prompt) // 4, limits.context_tokens
    return [
        Generate(
            request_id=next(ids),
            input_ids=prompt,
            sampling=sampling,
            logprobs=call.logprobs,
            namespace=call.namespace,
            priority=call.priority,
            # Stop strings are found on this side, so that tokens must come as they are made.
            stream=call.stream or bool(spec.stop),
            background=not call.measured,
            boundaries=boundaries,
            share=call.share,
            timeout_s=call.timeout_s,
            traced=traced,
        )
        for sampling in spec.resolve_all(count, context, limits.vocab_size, seed=seed)
    ]


def _check_logprobs(call: GenerateCall, prompt_tokens: int) -> None:
    """Raise BadRequest where what is told of the prompt would fill the memory."""
    asked, choices = call.logprobs, call.sampling.n
    if asked is None:
        return
    positions = prompt_tokens - asked.start
    each = 1 + asked.top + len(asked.token_ids)
    if positions * each * choices > MAX_PROMPT_LOGPROBS:
        raise BadRequest(
            f"{each} log-probabilities of each of {positions} prompt tokens, for each of {choices} "
            f"choices: a request has at most {MAX_PROMPT_LOGPROBS} in all",
            param="logprobs",
        )


def make_choices(
    call: GenerateCall, requests: list[Generate], tokenizer: TextTokenizer
) -> list[Choice]:
    """Return one choice per scheduler request, in order."""
    spec = call.sampling
    stops = StopTable.build(spec.stop) if spec.stop else None
    hidden = tokenizer.special_ids if spec.skip_special_tokens else frozenset[int]()
    choices: list[Choice] = []
    for index, request in enumerate(requests):
        text = _token_text(call, Detokenizer(tokenizer.backend, hidden, call.marks), stops)
        choice = Choice(index, request.request_id, text, trim=not spec.no_stop_trim)
        choice.streams = request.stream
        choice.prompt_tokens = len(request.input_ids) // 4
        choices.append(choice)
    return choices


def _token_text(call: GenerateCall, detokenizer: Detokenizer, stops: StopTable | None) -> TokenText:
    """Return what turns the tokens of one choice to text; channels only where they matter."""
    least, trim = call.sampling.min_new_tokens, not call.sampling.no_stop_trim
    if call.channels is None or (stops is None and call.logprobs is None):
        return ChoiceText(detokenizer, stops, min_new_tokens=least, trim=trim)
    return ChannelText(
        detokenizer,
        call.channels(),
        stops,
        min_new_tokens=least,
        trim=trim,
        marks=call.marks.keys(),
    )
