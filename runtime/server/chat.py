"""Chats in OpenAI's dialect: what `/v1/chat/completions` says, without HTTP."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from runtime.chat.answer_format import Parser
from runtime.chat.answer_parser import AnswerParser
from runtime.chat.chat_prompt import ChatPrompt
from runtime.chat.marks import DSML, THINK_END
from runtime.chat.reasoning_counter import Counter, ReasoningCounter
from runtime.errors import BadRequest
from runtime.messages import Grammar, Logprobs
from runtime.sampling import SamplingSpec
from runtime.server.caller import caller
from runtime.server.chat_reply import ChoiceReply
from runtime.server.chat_schema import ChatBody, ChatMessage, conversation_chars
from runtime.server.custom_tools import CustomCalls
from runtime.server.fields import refusing_depth
from runtime.server.grammars import forced_call, format_grammar, or_calls, strict_calls
from runtime.server.native_plan import NO_PROMPT_LOGPROBS
from runtime.server.native_schema import check_priority
from runtime.server.next_turn import drops_reasoning
from runtime.server.openai import (
    Envelope,
    Usage,
    chat_logprobs,
    rendered,
    token_id_fields,
    usage_fields,
    usage_report,
)
from runtime.server.runs import Answer, gather, labels, merge
from runtime.server.service import Service
from runtime.server.template_turns import template_tools, template_turns, template_variables
from runtime.tokenizer.call import GenerateCall, refuse_endless
from runtime.tokenizer.choice import Delta, Finish


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """A request, ready to run.

    conversation  what the prompt was encoded from, in V4's format
    parser        makes the parser of one choice
    counter       makes a counter of one choice's reasoning; None where there is none
    """

    body: ChatBody
    envelope: Envelope
    call: GenerateCall
    prompt: ChatPrompt
    conversation: dict[str, Any]
    parser: Callable[[], Parser]
    counter: Callable[[], Counter | None]

    def reply(self, *, call_prefix: str = "call_") -> ChoiceReply:
        """Return an empty reply of one choice; ids of its calls begin with `call_prefix`."""
        return ChoiceReply(
            self.parser(),
            hold_reasoning=self.body.stream_reasoning is False,
            hold_calls=not self.body.stream,
            call_prefix=call_prefix,
        )


class Chats:
    """Answers conversations."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def encode(self, body: ChatBody) -> list[int]:
        """Return the prompt of a chat. Raises BadRequest."""
        if self._service.v4 is not None:
            return (await self._encode_v4(body.conversation())).token_ids
        return (await self._encode_template(body)).token_ids

    async def encode_unfinished(self, body: ChatBody) -> list[int]:
        """Return a chat up to the end of its last text, whoever's turn it is. Raises BadRequest."""
        if not body.messages[-1].content:
            raise BadRequest("an empty message cannot be continued", param="messages")
        return (await self._encode_template(body, any_role=True)).token_ids

    async def _encode_v4(self, conversation: Mapping[str, Any]) -> ChatPrompt:
        manager, v4 = self._service.manager, self._service.v4
        assert v4 is not None
        check = partial(refuse_endless, tokenizer=manager.tokenizer, limits=manager.limits)
        chars = conversation_chars(conversation)
        return await manager.in_thread(partial(v4.encode, conversation, check=check), chars=chars)

    async def _encode_template(self, body: ChatBody, *, any_role: bool = False) -> ChatPrompt:
        chat, answers = self._service.chat, self._service.answers
        if chat is None or answers is None:
            raise BadRequest("this checkpoint has no tokenizer.json: use /generate with input_ids")
        turns, tools = template_turns(body, answers.calls), template_tools(body)
        if tools and (answers.calls is None or not chat.shows_tools):
            raise BadRequest(
                "this model's chat template has no tools: leave them out, or start the server with "
                "a --chat-template that shows them",
                param="tools",
                code="not_supported",
            )
        opens = True if body.add_generation_prompt is None else body.add_generation_prompt
        if body.continues and turns[-1].role != "assistant" and not any_role:
            raise BadRequest("only an assistant's message can be continued", param="messages")
        body.check_continued()
        manager, variables = self._service.manager, template_variables(body, chat.reads)
        deep = "tools" if tools else "messages"
        with refusing_depth(deep):
            text = chat.texts(turns, tools, body.documents)

        def work() -> list[int]:
            refuse_endless(text, manager.tokenizer, manager.limits)
            with refusing_depth(deep):
                return chat.encode(
                    turns,
                    continue_final=body.continues,
                    open_turn=opens,
                    variables=variables,
                    tools=tools,
                    documents=body.documents,
                )

        ids = await manager.in_thread(work, chars=len(text))
        return ChatPrompt(
            ids,
            thinking=answers.reasoning is not None,
            reasoning=answers.reasons(ids),
            tools=None if tools is None else body.offered_tools(),
        )

    async def plan(self, body: ChatBody) -> ChatPlan:
        """Return the call that `body` asks for. Raises BadRequest or NotFound."""
        service = self._service
        service.check_model(body.model)
        spec = body.spec(vocab_size=service.vocab_size, defaults=service.defaults)
        conversation = dict[str, Any]()
        if service.v4 is not None:
            conversation = body.conversation()
            prompt = await self._encode_v4(conversation)
        else:
            prompt = await self._encode_template(body)
        parser, marks = self._parser(body, prompt)
        call = GenerateCall(
            sampling=replace(
                spec,
                grammar=self._grammar(body, spec, prompt),
                stop_token_ids=(*spec.stop_token_ids, *self._end_ids(prompt)),
            ),
            input_ids=prompt.token_ids,
            logprobs=Logprobs(NO_PROMPT_LOGPROBS, body.top_logprobs or 0)
            if body.logprobs
            else None,
            namespace=service.namespaces.of(body.cache_salt, body.extra_key),
            priority=check_priority(body.priority),
            share=caller().share,
            timeout_s=caller().timeout_s,
            stream=bool(body.stream),
            rid=labels(body.rid, 1)[0],
            marks=marks,
            channels=lambda: parser().channels,
        )
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        envelope = Envelope.make("chatcmpl", kind, body, service.model_name)
        counter = partial(self._counter, prompt, marks)
        return ChatPlan(body, envelope, call, prompt, conversation, parser, counter)

    def _parser(
        self, body: ChatBody, prompt: ChatPrompt
    ) -> tuple[Callable[[], Parser], Mapping[int, str]]:
        """Return what makes the parser of one choice, and the marks that it reads."""
        parallel = body.parallel_tool_calls is not False
        separate = body.separate_reasoning is not False
        v4, answers = self._service.v4, self._service.answers
        if v4 is not None:
            # V4's markup of a call is never content, also where the request lets no tool be called.
            make = partial(AnswerParser, tools=prompt.tools or {}, reasoning=prompt.reasoning)
            return partial(make, parallel=parallel, separate=separate), v4.marks
        assert answers is not None, "what encodes a chat is known to read its answer"
        make = partial(answers.parser, tools=prompt.tools, reasoning=prompt.reasoning)
        return (
            partial(make, parallel=parallel, separate=separate, opened=body.continues),
            answers.marks(tools=prompt.tools is not None),
        )

    def _counter(self, prompt: ChatPrompt, marks: Mapping[int, str]) -> Counter | None:
        backend, answers = self._service.manager.tokenizer.backend, self._service.answers
        if not prompt.thinking:
            return None
        if answers is not None and backend is not None:
            return answers.counter(backend, marks, reasoning=prompt.reasoning)
        return ReasoningCounter(marks, reasoning=prompt.reasoning)

    def _end_ids(self, prompt: ChatPrompt) -> tuple[int, ...]:
        """Return tokens that end an answer, whether or not the checkpoint says so."""
        answers = self._service.answers
        return () if answers is None else answers.end_ids(tools=prompt.tools is not None)

    def _grammar(self, body: ChatBody, spec: SamplingSpec, prompt: ChatPrompt) -> Grammar | None:
        """Return what the answer must be, from the end of its reasoning on, or what its calls must.

        None: nothing is held to anything. Raises GrammarError.
        """
        grammar, v4, answers = spec.grammar, self._service.v4, self._service.answers
        parallel, forced = body.parallel_tool_calls is not False, body.forced_tools()
        # Of a tool that is named one call is made; "required" may need several.
        several = parallel and not body.choice.is_single
        if answers is not None:
            return format_grammar(
                grammar,
                answers,
                forced,
                body.held_tools() if prompt.tools else None,
                parallel=several,
                reasoning=prompt.reasoning,
                holds=body.holds_calls(),
            )
        if v4 is None:
            return grammar
        ids = {mark: token_id for token_id, mark in v4.marks.items()}
        if forced is not None:
            grammar = forced_call(forced, dsml_id=ids[DSML], parallel=several)
        elif prompt.tools:
            held = body.held_tools()
            if grammar is not None:
                grammar = or_calls(grammar, held, dsml_id=ids[DSML], parallel=parallel)
            elif body.holds_calls():
                return strict_calls(held, dsml_id=ids[DSML], parallel=parallel)
        if grammar is None or not prompt.reasoning:
            return grammar
        # A call amid the reasoning would end it, and no grammar holds that call.
        return msgspec.structs.replace(grammar, after=ids[THINK_END], barred=ids[DSML])

    async def gather(self, plan: ChatPlan) -> dict[str, Any]:
        """Return the whole answer. Raises RequestError."""
        [answers] = await gather(self._service.manager, [plan.call])
        choices = [await self._choice(plan, index, answer) for index, answer in enumerate(answers)]
        return plan.envelope.wrap(choices, usage=usage_report([answers]))

    async def _choice(self, plan: ChatPlan, index: int, answer: Answer) -> dict[str, Any]:
        reply, counter = plan.reply(), plan.counter()
        reply.feed(answer.text, ended=True)
        answer.count_reasoning(counter, answer.token_ids)
        self.prepare_next(plan, reply, answer.finish)
        logprobs = None
        if plan.call.logprobs is not None:
            told, speller = answer.logprobs, self._service.speller
            render = partial(chat_logprobs, told, answer.channels, speller)
            logprobs = await rendered(self._service.manager, told.entries, render)
        return {
            "index": index,
            "message": CustomCalls(plan.body.custom_tools()).message(reply.message()),
            "logprobs": logprobs,
            **token_id_fields(plan.body, answer.token_ids),
            **reply.finish_fields(answer.finish),
        }

    async def stream(self, plan: ChatPlan) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the answer's chunks; closing the generator ends the call. Raises RequestError."""
        body, usage = plan.body, Usage([plan.call])
        replies = [plan.reply() for _ in range(plan.call.sampling.n)]
        counters = [plan.counter() for _ in replies]
        customs = [CustomCalls(body.custom_tools()) for _ in replies]
        begun: set[int] = set()
        merged = merge(self._service.manager, [plan.call])
        try:
            async for _, delta in merged:
                tally, counter = usage.tallies[0][delta.index], counters[delta.index]
                tally.count(delta)
                tally.count_reasoning(counter, delta.token_ids)
                if delta.index not in begun:
                    begun.add(delta.index)
                    role = {"role": "assistant", "content": ""}
                    yield self._wrapped(plan, usage, _chunk(delta.index, role))
                reply = replies[delta.index]
                for chunk in self._news(plan.body, delta, reply, customs[delta.index]):
                    yield self._wrapped(plan, usage, chunk)
                if delta.finish is not None:
                    self.prepare_next(plan, reply, delta.finish)
                    last = _chunk(delta.index, {}) | reply.finish_fields(delta.finish)
                    yield self._wrapped(plan, usage, last)
        finally:
            await merged.aclose()
        if body.include_usage:
            yield plan.envelope.wrap([], usage=usage.report())

    def _news(
        self, body: ChatBody, delta: Delta, reply: ChoiceReply, custom: CustomCalls
    ) -> list[dict[str, Any]]:
        """Return the chunks of a delta; what is told of its tokens goes with the first of them."""
        ended = delta.finish is not None
        parts = list(filter(None, map(custom.delta, reply.feed(delta.text, ended=ended))))
        if ended and (last := custom.finish()) is not None:
            parts.append(last)
        tokens = token_id_fields(body, delta.token_ids)
        if delta.logprobs is not None and any(delta.channels):
            speller = self._service.speller
            tokens["logprobs"] = chat_logprobs(delta.logprobs, delta.channels, speller)
        if tokens and not parts:
            parts = [{"content": ""}]
        chunks = [_chunk(delta.index, part) for part in parts]
        for chunk in chunks[:1]:
            chunk.update(tokens)
        return chunks

    def _wrapped(self, plan: ChatPlan, usage: Usage, chunk: dict[str, Any]) -> dict[str, Any]:
        return plan.envelope.wrap([chunk], **usage_fields(plan.body, usage))

    def prepare_next(self, plan: ChatPlan, reply: ChoiceReply, finish: Finish | None) -> None:
        """Let the next turn be prefilled where it will not repeat this answer's tokens."""
        warm = self._service.next_turn
        # Of several choices nobody knows which one is gone on with.
        whole = finish is not None and finish.type == "stop" and plan.call.sampling.n == 1
        if warm is None or not whole:
            return
        message = reply.message()
        if self._service.v4 is None:
            past = partial(self._template_past, plan.body, message, plan.prompt)
        elif message.get("reasoning_content") and drops_reasoning(plan.conversation, plan.prompt):
            past = partial(self._v4_past, plan.conversation, message)
        else:
            return
        warm.prepare(past, prompt=plan.prompt, call=plan.call)

    async def _v4_past(
        self, conversation: Mapping[str, Any], message: Mapping[str, Any]
    ) -> list[int]:
        """Return what the prompt of the turn after `message` will begin with."""
        v4 = self._service.v4
        assert v4 is not None
        answer: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
        calls: list[dict[str, Any]] = message.get("tool_calls") or []
        if calls:
            answer["tool_calls"] = calls
        said = {**conversation, "messages": [*conversation["messages"], answer]}
        encode = partial(v4.encode_past, conversation, answer, [call["id"] for call in calls])
        return await self._service.manager.in_thread(encode, chars=conversation_chars(said))

    async def _template_past(
        self, body: ChatBody, message: Mapping[str, Any], prompt: ChatPrompt
    ) -> list[int]:
        """Return the same by a template: what the prompts of two such turns have in common.

        Empty where that is `prompt` and an answer without reasoning: their tokens are cached.
        Qwen3 without thinking opens an empty reasoning, which its next turn leaves out.
        """
        if message.get("tool_calls") or body.continues:
            return []
        answer = ChatMessage(role="assistant", content=message.get("content") or "")
        one, other = [
            (
                await self._encode_template(
                    msgspec.structs.replace(
                        body,
                        messages=[*body.messages, answer, ChatMessage(role="user", content=said)],
                    )
                )
            ).token_ids
            for said in ("0", "a")
        ]
        parting = (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])
        past = one[: next(parting, 0)]
        repeats = past[: len(prompt.token_ids)] == prompt.token_ids
        return [] if repeats and not message.get("reasoning_content") else past


def _chunk(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
