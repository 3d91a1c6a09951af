"""Tests of runtime.server.prompt: prompts in pieces."""

from typing import Any

import pytest

from runtime.messages import unpack_ids
from runtime.server.prompt import MAX_SEGMENTS
from tests.runtime.server.engine import (
    ASSISTANT,
    BOS,
    USER,
    V4_CONTEXT_TOKENS,
    Server,
    served,
    text_ids,
)

ONE: dict[str, Any] = {"max_new_tokens": 1}


async def prompt_of(server: Server, prompt: dict[str, Any]) -> list[int]:
    reply = await server.post("/generate", {"prompt_parts": prompt, "sampling_params": ONE})
    assert reply.status_code == 200, reply.text
    return [int(i) for i in unpack_ids(server.engine.requests[-1].input_ids)]


@served()
async def test_segments_are_joined_as_ids(server: Server) -> None:
    ids = await prompt_of(server, {"segments": ["ab", [7, 8], "", [], "c"]})

    assert ids == [*text_ids("ab"), 7, 8, *text_ids("c")]


@served()
async def test_a_chat_is_rendered_by_the_template(server: Server) -> None:
    messages = [{"role": "user", "content": "hi"}]
    opened = await prompt_of(server, {"messages": messages})
    closed = await prompt_of(server, {"messages": messages, "add_generation_prompt": False})
    messages.append({"role": "assistant", "content": "Yes"})
    begun = await prompt_of(server, {"messages": messages, "continue_final_message": True})

    assert closed == [BOS, USER, *text_ids("hi")]
    assert opened == [*closed, ASSISTANT]
    assert begun == [*opened, *text_ids("Yes")]


@served(v4=True)
async def test_a_v4_chat_may_end_with_its_messages(server: Server) -> None:
    """Source: deepseek-recipe, which always opens an answer; the prompt of one is longer."""
    off: dict[str, Any] = {"chat_template_kwargs": {"thinking": False}}
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    opened = await prompt_of(server, {"messages": messages, **off})
    closed = await prompt_of(server, {"messages": messages, "add_generation_prompt": False, **off})
    messages.append({"role": "assistant", "content": "Yes"})
    begun = await prompt_of(
        server,
        {
            "messages": messages,
            "continue_final_message": True,
            "add_generation_prompt": False,
            **off,
        },
    )

    decode = server.manager.tokenizer.decode
    assert decode(closed) == "<｜begin▁of▁sentence｜>Be brief.<｜User｜>hi"
    assert decode(opened) == decode(closed) + "<｜Assistant｜></think>"
    assert opened[: len(closed)] == closed
    assert decode(begun) == decode(opened) + "Yes"


ENDLESS = "hello " * 30_000
ENDLESS_CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": ENDLESS[:90_000]},
    {"role": "assistant", "content": ENDLESS[90_000:]},
]

HI = [{"role": "user", "content": "hi"}]
ENDLESS_TOOL = {"type": "function", "function": {"name": "f", "description": ENDLESS}}
ENDLESS_CALL = [
    {
        "role": "assistant",
        "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": ENDLESS}}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "ok"},
]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": ENDLESS}),
        ("/generate", {"prompt_parts": {"segments": [ENDLESS[:90_000], [65], ENDLESS[90_000:]]}}),
        ("/generate", {"prompt_parts": {"messages": ENDLESS_CHAT}}),
        ("/score", {"text": ENDLESS, "choices": ["a"]}),
        ("/v1/completions", {"prompt": ["hi", ENDLESS]}),
        ("/v1/chat/completions", {"messages": ENDLESS_CHAT}),
        ("/v1/chat/completions", {"messages": HI, "tools": [ENDLESS_TOOL]}),
        ("/v1/chat/completions", {"messages": [*HI, *ENDLESS_CALL]}),
        ("/v1/messages", {"model": "default", "max_tokens": 1, "messages": ENDLESS_CHAT}),
    ],
)
@served(v4=True)
async def test_an_endless_text_is_refused_by_its_beginning(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    reply = await server.post(path, body)

    assert reply.status_code == 400
    assert f"more than {2 * V4_CONTEXT_TOKENS} tokens" in reply.json()["error"]["message"]


@served()
async def test_an_endless_chat_for_a_template_is_refused_by_its_beginning(server: Server) -> None:
    text = "x" * (17 * server.manager.limits.context_tokens)
    message = {"role": "user", "content": text}
    reply = await server.post("/v1/chat/completions", {"messages": [message]})

    assert reply.status_code == 400
    assert "has more than" in reply.json()["error"]["message"]


@served()
async def test_a_prompt_is_a_prompt_in_a_stream_too(server: Server) -> None:
    body = {"prompt_parts": {"segments": [[7]]}, "sampling_params": ONE}

    *chunks, done = await server.events("/generate", body)

    assert chunks[-1]["meta_info"]["prompt_tokens"] == 1
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt_parts": {}}, "either segments or messages"),
        ({"prompt_parts": {"segments": ["a"], "messages": []}}, "either segments or messages"),
        ({"prompt_parts": {"segments": []}}, "1 to"),
        ({"prompt_parts": {"segments": ["a"] * (MAX_SEGMENTS + 1)}}, "1 to"),
        ({"prompt_parts": {"segments": [[-1]]}}, "must lie in"),
        ({"prompt_parts": {"segments": [""]}}, "empty"),
        ({"prompt_parts": {"messages": []}}, "number of messages"),
        ({"prompt_parts": {"segments": ["a"]}, "text": "b"}, "only one of"),
        ({"prompt_parts": "a"}, "prompt_parts"),
    ],
)
@served()
async def test_a_prompt_that_is_none_is_refused(
    server: Server, body: dict[str, Any], message: str
) -> None:
    reply = await server.post("/generate", body)

    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]
    assert server.engine.requests == []


CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Yes"},
]


@served()
async def test_text_between_messages_stands_where_it_was_said(server: Server) -> None:
    between = [{"after": 0, "segment": "x"}, {"after": 1, "segment": "a"}]
    between += [{"after": 1, "segment": [7]}, {"after": 2, "segment": "c"}]
    plain = await prompt_of(server, {"messages": CHAT, "add_generation_prompt": False})

    ids = await prompt_of(
        server, {"messages": CHAT, "add_generation_prompt": False, "between": between}
    )

    x, a, c = (text_ids(text)[-1] for text in "xac")
    asked = [BOS, USER, *text_ids("hi")]
    assert plain[: len(asked)] == asked
    assert ids == [BOS, x, *asked[1:], a, 7, *plain[len(asked) :], c]


@served(v4=True)
async def test_text_between_the_turns_of_v4_stands_where_it_was_said(server: Server) -> None:
    off: dict[str, Any] = {"chat_template_kwargs": {"thinking": False}}
    between = [{"after": 0, "segment": "A"}, {"after": 1, "segment": "B"}]
    between.append({"after": 2, "segment": "C"})
    closed = {"messages": CHAT, "add_generation_prompt": False, "between": between, **off}
    opened = {"messages": CHAT[:1], "between": between[1:2], **off}

    decode = server.manager.tokenizer.decode
    begin, end = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    asked = "<｜User｜>hiB<｜Assistant｜></think>"
    assert decode(await prompt_of(server, closed)) == f"{begin}A{asked}Yes{end}C"
    assert decode(await prompt_of(server, opened)) == f"{begin}{asked}"


@served()
async def test_a_users_turn_may_be_continued(server: Server) -> None:
    await check_continued(server, {})
    empty = {"messages": [{"role": "user", "content": ""}], "continue_final_message": True}

    reply = await server.post("/generate", {"prompt_parts": empty, "sampling_params": ONE})

    assert "empty message" in reply.json()["error"]["message"]


@served(v4=True)
async def test_a_users_turn_of_v4_may_be_continued(server: Server) -> None:
    await check_continued(server, {"chat_template_kwargs": {"thinking": False}})


async def check_continued(server: Server, off: dict[str, Any]) -> None:
    """Neither format of these tests has anything after the text of a user."""
    unfinished = {"messages": CHAT[:1], "continue_final_message": True, **off}
    closed = {"messages": CHAT[:1], "add_generation_prompt": False, **off}

    assert await prompt_of(server, unfinished) == await prompt_of(server, closed)


@served()
async def test_text_at_no_place_of_a_chat_is_refused(server: Server) -> None:
    wrongs = [[{"after": 3, "segment": "a"}], [{"after": -1, "segment": "a"}]]
    for between in wrongs:
        prompt = {"messages": CHAT, "between": between}
        reply = await server.post("/generate", {"prompt_parts": prompt, "sampling_params": ONE})

        assert reply.status_code == 400
        assert "0 to 2 messages" in reply.json()["error"]["message"]


OFF: dict[str, Any] = {"chat_template_kwargs": {"thinking": False}}
BEGINNING = "Sort this: "


@pytest.mark.parametrize("v4", [False, True])
def test_shared_beginnings_leave_boundaries_where_they_end(v4: bool) -> None:
    @served(v4=v4)
    async def check(server: Server) -> None:
        off = OFF if v4 else {}
        begun = {"messages": [{"role": "user", "content": BEGINNING}], **off}
        chars, text = len(BEGINNING), BEGINNING + "one fox"
        chat = {"messages": [{"role": "user", "content": text}], **off}

        closed = await prompt_of(server, {**begun, "add_generation_prompt": False})
        ids = await prompt_of(server, {**chat, "shared": [{"message": 0, "chars": chars}]})
        of_chat = server.engine.requests[-1].boundaries
        plain = await prompt_of(server, {"segments": [text], "shared": [{"chars": chars}]})
        of_text = server.engine.requests[-1].boundaries

        assert ids == await prompt_of(server, chat)
        pairs = enumerate(zip(closed, ids, strict=False))
        common = next((k for k, (a, b) in pairs if a != b), len(closed))
        assert common in of_chat
        assert common > 3
        said = server.manager.tokenizer.encode(BEGINNING)
        assert 0 < of_text[0] <= len(said)
        assert plain[: of_text[0]] == said[: of_text[0]]

    check()


@pytest.mark.parametrize(
    "parts",
    [
        {"segments": ["ab"], "shared": [{"chars": 3}]},
        {"segments": ["ab"], "shared": [{"chars": 0}]},
        {"segments": [[7, 8]], "shared": [{"chars": 1}]},
        {"segments": ["ab"], "shared": [{"chars": 1, "message": 0}]},
        {"segments": ["ab"], "shared": [{"chars": 1}] * 5},
        {"messages": HI, "shared": [{"chars": 1}]},
        {"messages": HI, "shared": [{"chars": 1, "message": 1}]},
        {
            "messages": HI,
            "shared": [{"chars": 1, "message": 0}],
            "between": [{"after": 1, "segment": "x"}],
        },
    ],
)
@served(v4=True)
async def test_places_that_no_text_has_are_refused(server: Server, parts: dict[str, Any]) -> None:
    reply = await server.post("/generate", {"prompt_parts": parts, "sampling_params": ONE})

    assert reply.status_code == 400
    assert "shared" in reply.text


DIALOGUE: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "I say Yes."},
    {"role": "user", "content": "more"},
    {"role": "assistant", "content": "No"},
]
IDS = [[7, 8], [9]]


@pytest.mark.parametrize("v4", [False, True])
def test_answers_stand_in_a_chat_as_the_ids_they_were_written_in(v4: bool) -> None:
    @served(v4=v4)
    async def check(server: Server) -> None:
        off = OFF if v4 else {}
        first = {"message": 1, "segments": ["I say ", IDS[0]]}
        last = {"message": 3, "segments": [IDS[1]]}
        plain = {"messages": DIALOGUE, "add_generation_prompt": False, **off}
        text = await prompt_of(server, plain)
        ids = await prompt_of(server, {**plain, "written": [last, first]})
        continued = await prompt_of(
            server, {**plain, "written": [first, last], "continue_final_message": True}
        )
        opened = await prompt_of(server, {"messages": DIALOGUE[:1], **off})
        closed = await prompt_of(server, {**plain, "messages": DIALOGUE[:2]})

        encode = server.manager.tokenizer.encode
        said = encode("I say Yes.", add_special_tokens=False)
        end = closed[len(opened) + len(said) :]
        start = encode("I say ", add_special_tokens=False)
        assert ids[: len(opened) + len(start) + 2 + len(end)] == [*opened, *start, 7, 8, *end]
        assert continued == ids[: len(ids) - len(end)]
        assert continued[-1] == 9
        assert ids[len(ids) - len(end) - 1 :] == [9, *end]
        assert server.manager.tokenizer.decode(text).count("I say Yes.") == 1

    check()


@served(v4=True)
async def test_a_turn_that_a_model_wrote_for_the_user_keeps_its_ids(server: Server) -> None:
    user = {"role": "user", "content": "Ask: hi. "}
    ids = server.manager.tokenizer.encode("hi.", add_special_tokens=False)
    segments = ["Ask: ", {"text": "hi", "ids": ids}, ". "]

    text = await prompt_of(server, {"messages": [user], **OFF})
    written = [{"message": 0, "segments": segments}]
    kept = await prompt_of(server, {"messages": [user], "written": written, **OFF})

    decode = server.manager.tokenizer.decode
    assert decode(kept) == decode(text)
    assert any(kept[k : k + len(ids)] == ids for k in range(len(kept)))


@served(template="{% for m in messages %}|{{ m.content | trim }}{% endfor %}")
async def test_the_text_of_an_answer_counts_where_the_format_changes_it(server: Server) -> None:
    messages = [{"role": "assistant", "content": "Yes "}, {"role": "user", "content": "hi"}]
    written = [{"message": 0, "segments": [[7, 8]]}]
    kept = [{"role": "assistant", "content": "Yes"}, *messages[1:]]

    changed = await prompt_of(server, {"messages": messages, "written": written})
    same = await prompt_of(server, {"messages": kept, "written": written})

    decode = server.manager.tokenizer.decode
    assert decode(changed) == "|Yes|hi"
    assert same == [changed[0], 7, 8, *changed[4:]]


@pytest.mark.parametrize(
    "written",
    [
        [{"message": 2, "segments": [[7]]}],
        [{"message": 4, "segments": [[7]]}],
        [{"message": -1, "segments": [[7]]}],
        [{"message": 1, "segments": [[7]]}] * 2,
        [{"message": 1, "segments": []}],
        [{"message": 1, "segments": [[1 << 30]]}],
    ],
)
@served(v4=True)
async def test_ids_that_no_answer_has_are_refused(
    server: Server, written: list[dict[str, Any]]
) -> None:
    messages = [*DIALOGUE]
    messages[2] = {"role": "tool", "content": "more", "tool_call_id": "1"}
    prompt = {"messages": messages, "written": written, **OFF}
    reply = await server.post("/generate", {"prompt_parts": prompt, "sampling_params": ONE})

    assert reply.status_code == 400
    assert "prompt_parts" in reply.text or "written" in reply.text or "segments" in reply.text
