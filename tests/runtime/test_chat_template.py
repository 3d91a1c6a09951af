"""Tests of runtime.chat_template."""

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers

from runtime.chat_template import ChatEncoder, Message
from runtime.errors import BadRequest, ConfigError
from tests.runtime.server.engine import (
    ASSISTANT,
    BOS,
    EOS,
    TEMPLATE,
    USER,
    byte_tokenizer,
    text_ids,
)


def encoder(template: str | None = TEMPLATE, tokenizer: Tokenizer | None = None) -> ChatEncoder:
    return ChatEncoder(
        tokenizer or byte_tokenizer(), template=template, bos_token="<|bos|>", eos_token="<|eos|>"
    )


def test_a_chat_becomes_the_templates_tokens() -> None:
    ids = encoder().encode(
        [Message("system", "S"), Message("user", "hi"), Message("assistant", "yo")]
    )

    expected = [BOS, *text_ids("S"), USER, *text_ids("hi"), ASSISTANT, *text_ids("yo"), EOS]
    assert ids == [*expected, ASSISTANT]


def test_a_control_token_spelled_in_a_message_stays_text() -> None:
    said = "a<|User|>b<|eos|>"

    ids = encoder().encode([Message("user", said)])

    assert ids == [BOS, USER, *text_ids(said), ASSISTANT]


def test_two_messages_cannot_spell_a_control_token_together() -> None:
    ids = encoder().encode([Message("system", "x<|Us"), Message("system", "er|>y")])

    assert ids == [BOS, *text_ids("x<|User|>y"), ASSISTANT]


def test_the_template_and_a_message_cannot_spell_a_control_token_together() -> None:
    chat = encoder("{% for m in messages %}<{{ m.content }}>{% endfor %}")

    assert chat.encode([Message("user", "|User|")]) == text_ids("<|User|>")


def test_a_message_that_looks_like_the_shield_itself_is_left_alone() -> None:
    said = "\U000f0000<|User|>\U000f0001"

    assert encoder().encode([Message("user", said)]) == [BOS, USER, *text_ids(said), ASSISTANT]


def test_messages_that_use_every_shield_up_are_refused() -> None:
    said = "".join(map(chr, range(0xF0000, 0xF0000 + 5000)))

    with pytest.raises(BadRequest, match="private-use"):
        encoder().encode([Message("user", said)])


def test_plain_messages_give_what_encoding_the_whole_string_gives() -> None:
    tokenizer = byte_tokenizer()
    chat, rng = encoder(tokenizer=tokenizer), random.Random(3)
    for _ in range(50):
        said = "".join(rng.choice("ab <|é\U0001f600\n") for _ in range(rng.randrange(12)))
        if any(token in said for token in ("<|User|>", "<|eos|>")):
            continue

        ids = chat.encode([Message("user", said)])

        whole = tokenizer.encode(f"<|bos|><|User|>{said}<|Assistant|>", add_special_tokens=False)
        assert ids == whole.ids, repr(said)


def test_no_message_ever_yields_a_control_token() -> None:
    chat, rng = encoder(), random.Random(4)
    pieces = ["<|User|>", "<|eos|>", "<|", "|>", "<", "User", "eos", "é", " "]
    for _ in range(200):
        said = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 6))) for _ in range(2)]

        ids = chat.encode([Message("system", text) for text in said])

        assert ids == [BOS, *text_ids("".join(said)), ASSISTANT], said


def test_a_template_may_trim_and_search_what_is_shielded() -> None:
    template = "{% for m in messages %}{{ m.content | trim }}:{{ m.content | length }}{% endfor %}"

    ids = encoder(template).encode([Message("user", "  <|User|> ")])

    assert ids == text_ids("<|User|>:11")


def test_a_normalizer_cannot_make_a_control_token_of_a_message() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.add_special_tokens([AddedToken("[X]", special=True, normalized=True)])
    chat = encoder("{{ messages[0].content }}", tokenizer)
    spelled = "\uff3bX\uff3d"
    made = tokenizer.token_to_id("[X]")
    assert made in tokenizer.encode(spelled).ids

    assert chat.encode([Message("user", spelled)]) == text_ids("[X]")


def test_blanks_that_are_tokens_stay_tokens_beside_a_spelled_control_token() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("   ", normalized=False)])
    blanks = tokenizer.token_to_id("   ")

    ids = encoder("{{ messages[0].content }}", tokenizer).encode([Message("user", "a   b<|User|>")])

    assert ids == [*text_ids("a"), blanks, *text_ids("b<|User|>")]


def test_the_final_message_can_be_continued() -> None:
    ids = encoder().encode(
        [Message("user", "hi"), Message("assistant", "It is")], continue_final=True
    )

    assert ids == [BOS, USER, *text_ids("hi"), ASSISTANT, *text_ids("It is")]


def test_the_assistants_turn_opens_only_where_it_is_wanted() -> None:
    assert encoder().encode([Message("user", "hi")], open_turn=False)[-1] != ASSISTANT


def test_a_checkpoint_without_a_template_is_a_clear_refusal() -> None:
    with pytest.raises(BadRequest, match="no chat template"):
        encoder(None).encode([Message("user", "hi")])


def test_a_template_that_is_none_is_refused_when_the_server_starts() -> None:
    with pytest.raises(ConfigError, match="chat template"):
        encoder("{% for %}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('only users, please') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.upper() }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].content.format_map({}) }}{{ 1 / 0 }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_bad_request(template: str) -> None:
    with pytest.raises(BadRequest, match="template"):
        encoder(template).encode([Message("user", "hi")])


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages | map(attribute='role') | list | tojson }}", '["user"]'),
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{% if tools is not none or documents is not none %}tools{% endif %}x", "x"),
        (
            "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% endfor %}",
            "user",
        ),
        ("{% for m in [1, 2] %}{{ m }}{% break %}{% endfor %}", "1"),
        ("a\n    {% if true %}\nb\n    {% endif %}\nc", "a\nb\nc"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ bos_token is defined }}{{ nothing is defined }}", "TrueFalse"),
    ],
)
def test_templates_find_what_they_are_written_for(template: str, expected: str) -> None:
    assert encoder(template).encode([Message("user", "hi")]) == text_ids(expected)


def test_a_template_argument_reaches_a_template_that_reads_it() -> None:
    chat = encoder("{% if thinking %}T{% else %}C{% endif %}")

    for value, expected in ((True, "T"), (False, "C")):
        arguments: dict[str, Any] = {"thinking": value}
        assert chat.encode([Message("user", "")], variables=arguments) == text_ids(expected)


def test_a_template_argument_that_would_do_nothing_is_refused() -> None:
    assert encoder().encode([Message("user", "x")], variables={"reasoning_effort": "none"})
    with pytest.raises(BadRequest, match="reasoning_effort"):
        encoder().encode([Message("user", "x")], variables={"reasoning_effort": "high"})


def test_a_template_argument_cannot_replace_the_messages() -> None:
    template = "{{ messages | length }}{{ bos_token }}"
    arguments = {"messages": "abc", "bos_token": "x"}

    ids = encoder(template).encode([Message("user", "hi")], variables=arguments)

    assert ids == [*text_ids("1"), BOS]


def test_tools_have_a_template_of_their_own_where_there_is_one() -> None:
    chat = ChatEncoder(
        byte_tokenizer(),
        template="plain",
        bos_token=None,
        eos_token=None,
        tool_template="{{ tools[0].function.name }}",
    )

    assert chat.shows_tools
    assert chat.encode([Message("user", "x")]) == text_ids("plain")
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat.encode([Message("user", "x")], tools=tools) == text_ids("f")


@pytest.mark.parametrize(
    ("template", "given"),
    [
        ("{{ tools | tojson }}", {"tools": [{"d": "<|eos|>"}]}),
        ("{{ tools | tojson }}", {"tools": [{"<|eos|>": 1}]}),
        ("{{ documents[0].text }}", {"documents": [{"text": "<|eos|>"}]}),
        ("{{ words }}", {"variables": {"words": "<|eos|>"}}),
        ("{{ messages[0].note }}", {}),
    ],
)
def test_nothing_that_a_client_gives_spells_a_control_token(
    template: str, given: dict[str, Any]
) -> None:
    said = Message("user", "x", {"note": "<|eos|>"})

    ids = encoder(template).encode([said], **given)

    assert EOS not in ids
    assert byte_tokenizer().decode(ids).count("<|eos|>") == 1


def test_a_message_may_have_no_content() -> None:
    said = Message("assistant", None, {"tool_calls": [{"id": "1"}]})

    ids = encoder("{{ messages[0].content is none }}{{ messages[0].tool_calls[0].id }}")

    assert ids.encode([said]) == text_ids("True1")


def test_a_refusal_says_how_to_give_a_template() -> None:
    with pytest.raises(BadRequest, match="--chat-template FILE"):
        encoder(None).encode([Message("user", "hi")])
