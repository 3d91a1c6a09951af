"""Prompts that neither one text nor one list of ids can say: what a program has said so far.

`prompt_parts` is one of two objects. `{"segments": [...]}` mixes text with the very ids a model
produced, so that the next call continues at the exact last token. `{"messages": [...]}` is a chat,
rendered by the checkpoint's own template.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from runtime.chat.marks import ASSISTANT, BOS
from runtime.errors import BadRequest
from runtime.server.chat import Chats
from runtime.server.chat_schema import ChatBody, ChatMessage
from runtime.server.native_schema import GenerateBody
from runtime.server.segments import Segment, plain_segments, segment_ids, segment_text
from runtime.server.service import Service
from runtime.server.written import Answer, Written, make_answer, put_in
from runtime.tokenizer.call import Limits, refuse_endless
from runtime.tokenizer.tokenizer import TextTokenizer

MAX_SEGMENTS = 10_000
# Places between the messages of a chat that text may stand at: each is rendered by itself.
MAX_PLACES = 64
MAX_SHARED = 4
# Whose messages a model may have written.
_WRITABLE = ("assistant", "user", "system")


class Between(msgspec.Struct, frozen=True):
    """Text outside of the messages of a chat, as it is: text or token ids.

    after    how many messages stand before it
    segment  text, in which control tokens mean what they are, or ids
    """

    after: int
    segment: Segment


class Shared(msgspec.Struct, frozen=True):
    """Where a beginning ends that other prompts are likely to share.

    chars    of the message, or of the first segment
    message  None: of segments
    """

    chars: int
    message: int | None = None


class Prompt(msgspec.Struct, frozen=True):
    """A prompt in pieces; exactly one of `segments` and `messages` is given.

    segments                text, token ids, or answers that a stop string ended, in order; each
                            text is tokenised by itself, and only a first one is given what begins
                            a text
    continue_final_message  the last message is unfinished: the answer's beginning, or a turn of
                            another role in which the model is to write
    add_generation_prompt   open the assistant's turn (the default); False: the messages alone,
                            which every longer chat begins with
    chat_template_kwargs    as for `/v1/chat/completions`
    between                 text that stands outside of the messages
    shared                  ends of beginnings that other prompts are likely to share: each leaves a
                            resume point
    written                 messages as the token ids that a model wrote
    """

    segments: list[Segment] | None = None
    messages: list[ChatMessage] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    between: list[Between] | None = None
    written: list[Written] | None = None
    shared: list[Shared] | None = None


class PromptedBody(GenerateBody, frozen=True):
    """`/generate`, with one more way to give the prompt."""

    prompt_parts: Prompt | None = None


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A prompt as ids.

    open_tokens  trailing ids that come from text, so that text after it may merge with them
    boundaries   positions where other prompts are likely to part from it
    chat         it was rendered from messages, whose text never means a control token
    """

    ids: list[int]
    open_tokens: int
    chat: bool = False
    boundaries: tuple[int, ...] = ()


class Prompts:
    """Turns every form of a prompt into ids."""

    def __init__(self, service: Service, chat: Chats) -> None:
        self._service = service
        self._chat = chat

    async def resolve(self, body: PromptedBody) -> tuple[GenerateBody, tuple[int, ...]]:
        """Return `body` with its `prompt_parts`, if any, as input_ids; and its boundaries.

        Raises BadRequest.
        """
        if body.prompt_parts is None:
            return body, ()
        if body.text is not None or body.input_ids is not None:
            raise BadRequest(
                "give only one of text, input_ids and prompt_parts", param="prompt_parts"
            )
        found = await self.encode(body.prompt_parts)
        ids = msgspec.structs.replace(body, input_ids=found.ids, prompt_parts=None)
        return ids, found.boundaries

    async def encode(self, prompt: Prompt) -> PromptIds:
        """Return the ids of a prompt in pieces. Raises BadRequest."""
        found = await self._encode(prompt)
        if not prompt.shared:
            return found
        if prompt.between or len(prompt.shared) > MAX_SHARED:
            raise BadRequest(
                f"shared names {MAX_SHARED} places at most, and none beside between",
                param="prompt_parts",
            )
        ends = [await self._end(prompt, shared, found.ids) for shared in prompt.shared]
        return replace(found, boundaries=tuple(sorted({end for end in ends if end > 0})))

    async def _end(self, prompt: Prompt, shared: Shared, ids: list[int]) -> int:
        """Return where a shared beginning of a prompt ends in its ids. Raises BadRequest."""
        at, messages = shared.message, prompt.messages or []
        texts = [m.content for m in messages] if prompt.messages else (prompt.segments or [])[:1]
        place = at or 0
        text = texts[place] if 0 <= place < len(texts) else None
        is_chat = prompt.messages is not None
        if (
            is_chat != (at is not None)
            or not isinstance(text, str)
            or not (0 < shared.chars <= len(text))
        ):
            raise BadRequest("shared names no place in a text", param="prompt_parts")
        if at is None:
            begun = (await self.encode_segments([text[: shared.chars]])).ids
        else:
            last = msgspec.structs.replace(messages[at], content=text[: shared.chars])
            cut = msgspec.structs.replace(
                prompt, continue_final_message=True, add_generation_prompt=False
            )
            begun, _ = await self._render(cut, [*messages[:at], last])
        pairs = enumerate(zip(begun, ids, strict=False))
        return next((k for k, (a, b) in pairs if a != b), min(len(begun), len(ids)))

    async def _encode(self, prompt: Prompt) -> PromptIds:
        if (prompt.segments is None) == (prompt.messages is None):
            raise BadRequest("prompt_parts has either segments or messages", param="prompt_parts")
        if prompt.segments is not None:
            return await self.encode_segments(prompt.segments)
        messages = prompt.messages or []
        self._check_written(prompt.written or [], messages)
        ids, open_tokens = await self._render(prompt, messages)
        if prompt.between:
            return await self._insert(prompt, messages, ids, open_tokens)
        return PromptIds(ids, open_tokens, chat=True)

    def _check_written(self, written: list[Written], messages: list[ChatMessage]) -> None:
        """Raise BadRequest for what no message can be written in."""
        seen: set[int] = set()
        for one in written:
            at = one.message
            if not 0 <= at < len(messages) or messages[at].role not in _WRITABLE or at in seen:
                raise BadRequest(
                    f"written names messages of {', '.join(_WRITABLE)} by index, each once: "
                    f"got {at}",
                    param="prompt_parts",
                )
            if not isinstance(messages[at].content, str):
                raise BadRequest(
                    f"messages[{at}] is written, so its content is one text", param="prompt_parts"
                )
            seen.add(at)
            self._check_segments(one.segments)

    async def _render(
        self, prompt: Prompt, messages: list[ChatMessage], *, as_prefix: bool = False
    ) -> tuple[list[int], int]:
        """Return the ids of a chat, and how many at its end come from text.

        as_prefix  of what every longer one begins with
        """
        answers = await self._answers(prompt.written or [], len(messages))
        if not answers:
            ids = await self._render_text(prompt, messages, as_prefix=as_prefix)
            return ids, len(ids)
        marked = [
            msgspec.structs.replace(message, content=answers[at].mark) if at in answers else message
            for at, message in enumerate(messages)
        ]
        ids = await self._render_text(prompt, marked, as_prefix=as_prefix)
        found = put_in(ids, [answers[at] for at in sorted(answers)])
        changes = any(messages[at].role != "assistant" for at in answers)
        if self._service.v4 is None or found is None or changes:
            # A template may change what it prints: V4's format leaves answers as they are.
            plain = await self._render_text(prompt, messages, as_prefix=as_prefix)
            if found is None or not self._is_same(ids, answers, messages, plain):
                return plain, len(plain)
        return found

    async def _answers(self, written: list[Written], count: int) -> dict[int, Answer]:
        """Return the answers among the first `count` messages that are written, by index."""
        manager = self._service.manager
        found = {
            one.message: await manager.in_thread(
                partial(make_answer, manager.tokenizer, one.segments),
                chars=sum(len(segment_text(s)) for s in one.segments),
            )
            for one in written
            if one.message < count
        }
        return {at: answer for at, answer in found.items() if answer is not None}

    def _is_same(
        self,
        ids: list[int],
        answers: dict[int, Answer],
        messages: list[ChatMessage],
        plain: list[int],
    ) -> bool:
        """Say whether a chat with marks, `ids`, reads as the `plain` one but for the marks."""
        text = self._service.manager.tokenizer.decode(ids)
        for at, answer in answers.items():
            text = text.replace(answer.mark, str(messages[at].content))
        return text == self._service.manager.tokenizer.decode(plain)

    async def _render_text(
        self, prompt: Prompt, messages: list[ChatMessage], *, as_prefix: bool = False
    ) -> list[int]:
        """Return the ids of a chat; `as_prefix`: of what every longer one begins with."""
        continues = bool(prompt.continue_final_message) and not as_prefix
        v4 = self._service.v4 is not None
        unfinished = continues and bool(messages) and messages[-1].role != "assistant"
        opens = False if as_prefix else prompt.add_generation_prompt
        body = ChatBody(
            messages=messages,
            # In the V4 format nothing follows the text of a turn that is not the assistant's.
            continue_final_message=continues and not (v4 and unfinished),
            add_generation_prompt=None if v4 else opens,
            chat_template_kwargs=prompt.chat_template_kwargs,
        )
        if unfinished and not v4:
            return await self._chat.encode_unfinished(body)
        ids = await self._chat.encode(body)
        if v4 and (unfinished or (opens is False and not body.continues)):
            ids = self._closed(ids)
        return ids

    async def _insert(
        self, prompt: Prompt, messages: list[ChatMessage], ids: list[int], ends_open: int
    ) -> PromptIds:
        """Return a chat's ids with the text between its messages in place. Raises BadRequest."""
        between = prompt.between or []
        places = sorted({text.after for text in between})
        if len(places) > MAX_PLACES or not 0 <= places[0] <= places[-1] <= len(messages):
            raise BadRequest(
                f"text stands after 0 to {len(messages)} messages, at {MAX_PLACES} places at most",
                param="prompt_parts",
            )
        merged: list[int] = []
        done = open_tokens = 0
        for place in places:
            cut = len(await self._prefix(prompt, messages, place, ids))
            segments = [text.segment for text in between if text.after == place]
            inserted = await self.encode_segments(segments, begins=False)
            merged += ids[done:cut] + inserted.ids
            done, open_tokens = cut, inserted.open_tokens
        rest = ids[done:]
        return PromptIds(merged + rest, min(len(rest), ends_open) or open_tokens, chat=True)

    async def _prefix(
        self, prompt: Prompt, messages: list[ChatMessage], place: int, ids: list[int]
    ) -> list[int]:
        """Return what precedes text that stands after so many messages. Raises BadRequest."""
        if place == 0:
            tokenizer = self._service.manager.tokenizer
            begin = BOS if self._service.v4 is not None else tokenizer.bos_token
            return ids[:1] if begin and ids[0] == tokenizer.token_id(begin) else []
        prefix, _ = await self._render(prompt, messages[:place], as_prefix=True)
        if ids[: len(prefix)] != prefix:
            raise BadRequest(
                f"the model's chat format has no place for text after messages[{place - 1}]",
                param="prompt_parts",
            )
        return prefix

    def _closed(self, ids: list[int]) -> list[int]:
        """Return a V4 prompt without the answer that the format always opens at its end."""
        opens = self._service.manager.tokenizer.token_id(ASSISTANT)
        return ids[: len(ids) - 1 - ids[::-1].index(opens)] if opens in ids else ids

    async def encode_segments(
        self, segments: Sequence[Segment], *, begins: bool = True
    ) -> PromptIds:
        """Return the ids of segments, which a prompt `begins` with or not. Raises BadRequest."""
        self._check_segments(segments)
        manager = self._service.manager
        return await manager.in_thread(
            lambda: _encode_segments(manager.tokenizer, manager.limits, segments, begins=begins),
            chars=sum(len(segment_text(segment)) for segment in segments),
        )

    def _check_segments(self, segments: Sequence[Segment]) -> None:
        """Raise BadRequest for too many of them, or ids that are none."""
        if not 1 <= len(segments) <= MAX_SEGMENTS:
            raise BadRequest(f"a prompt has 1 to {MAX_SEGMENTS} segments", param="prompt_parts")
        for segment in segments:
            if ids := segment_ids(segment):
                self._service.check_token_ids(ids, param="prompt_parts")


def _encode_segments(
    tokenizer: TextTokenizer, limits: Limits, segments: Sequence[Segment], *, begins: bool
) -> PromptIds:
    refuse_endless("".join(map(segment_text, segments)), tokenizer, limits)
    ids: list[int] = []
    open_tokens = 0
    for number, segment in enumerate(plain_segments(tokenizer, segments)):
        if isinstance(segment, str):
            new = tokenizer.encode(segment, add_special_tokens=begins and number == 0)
            open_tokens = len(new)
        else:
            new, open_tokens = segment, 0
        ids += new
    return PromptIds(ids, open_tokens)
