"""What a checkpoint's tokenizer files mean."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from runtime.chat.marks import USER
from runtime.default_model.folder import CHECKPOINT
from runtime.errors import BadRequest, ConfigError
from runtime.tokenizer.tokenizer import USER_TURN, TextTokenizer
from tests.runtime.tokenizer.samples import EOS, MERGED, THINK, byte_tokenizer, write_checkpoint


def with_bos() -> Tokenizer:
    """Return the byte tokenizer with a post-processor that puts <eos> before every text."""
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="<eos> $A", special_tokens=[("<eos>", EOS)]
    )
    return tokenizer


def test_text_and_control_tokens_are_encoded_and_decoded(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(write_checkpoint(tmp_path, byte_tokenizer()))

    ids = tokenizer.encode("é<think>世界<eos>")

    assert ids == [0xC3, 0xA9, THINK, MERGED, EOS]
    assert tokenizer.decode(ids) == "é<think>世界<eos>"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "é<think>世界"
    assert tokenizer.special_ids == {EOS}
    assert tokenizer.added_ids == {EOS, THINK, MERGED}


def test_many_ids_are_decoded_as_few_are(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(write_checkpoint(tmp_path, byte_tokenizer()))
    ids = [*tokenizer.encode("é<think>世界<eos>" * 1000), 0xC3]

    for skip in (False, True):
        assert tokenizer.decode(ids, skip_special_tokens=skip) == tokenizer.decode(
            ids[: len(ids) // 2], skip_special_tokens=skip
        ) + tokenizer.decode(ids[len(ids) // 2 :], skip_special_tokens=skip)


def test_facts_come_from_the_config_in_both_spellings(tmp_path: Path) -> None:
    facts = {"eos_token": {"content": "<eos>"}, "bos_token": "<eos>", "chat_template": "{{ x }}"}
    tokenizer = TextTokenizer.load(write_checkpoint(tmp_path, byte_tokenizer(), **facts))

    assert (tokenizer.eos_token, tokenizer.bos_token) == ("<eos>", "<eos>")
    wrong = TextTokenizer(None, {"eos_token": {"content": 5}, "bos_token": 5})
    assert (wrong.eos_token, wrong.bos_token) == (None, None)
    assert tokenizer.chat_template == "{{ x }}"
    assert (tokenizer.token_id("<eos>"), tokenizer.token_id("<no such>")) == (EOS, None)


def test_a_template_of_its_own_file_is_the_one(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, byte_tokenizer(), chat_template="{{ x }}")
    (folder / "chat_template.jinja").write_text("{{ y }}", encoding="utf-8")

    assert TextTokenizer.load(folder).chat_template == "{{ y }}"


def test_templates_may_be_named(tmp_path: Path) -> None:
    named = [{"name": n, "template": f"{{{{ {n} }}}}"} for n in ("tool_use", "default", "rag")]
    tokenizer = TextTokenizer.load(
        write_checkpoint(tmp_path, byte_tokenizer(), chat_template=named)
    )

    assert (tokenizer.chat_template, tokenizer.tool_template) == ("{{ default }}", "{{ tool_use }}")


def test_a_template_for_tools_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, byte_tokenizer())
    more = folder / "additional_chat_templates"
    more.mkdir()
    (folder / "chat_template.jinja").write_text("{{ y }}", encoding="utf-8")
    (more / "tool_use.jinja").write_text("{{ z }}", encoding="utf-8")

    tokenizer = TextTokenizer.load(folder)

    assert (tokenizer.chat_template, tokenizer.tool_template) == ("{{ y }}", "{{ z }}")


def test_the_post_processor_decides_about_special_tokens(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(write_checkpoint(tmp_path, with_bos()))

    assert tokenizer.encode("a") == [EOS, 0x61]
    assert tokenizer.encode("a", add_special_tokens=False) == [0x61]


def test_add_bos_token_false_means_none(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(write_checkpoint(tmp_path, with_bos(), add_bos_token=False))

    assert tokenizer.encode("a") == [0x61]


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    backend = byte_tokenizer()
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    tokenizer = TextTokenizer.load(write_checkpoint(tmp_path, backend))

    assert tokenizer.encode("abcde") == list(b"abcde")
    assert tokenizer.encode("a") == [0x61]


def test_without_tokenizer_text_is_refused_clearly(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(tmp_path)

    with pytest.raises(BadRequest, match=r"no tokenizer\.json"):
        tokenizer.encode("a")
    with pytest.raises(BadRequest, match=r"no tokenizer\.json"):
        tokenizer.decode([1])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("tokenizer_config.json", text) for text in ("", "{", "[]", "\xff")),
        *(("tokenizer.json", text) for text in ("", "{", "[]", "\xff", '{"model": 1}')),
    ],
)
def test_a_broken_file_is_a_config_error_that_names_it(
    tmp_path: Path, name: str, text: str
) -> None:
    write_checkpoint(tmp_path, byte_tokenizer())
    (tmp_path / name).write_text(text, encoding="latin-1")

    with pytest.raises(ConfigError, match=name):
        TextTokenizer.load(tmp_path)


def test_the_token_that_begins_a_turn_is_known_where_the_format_is(tmp_path: Path) -> None:
    served = TextTokenizer.load(CHECKPOINT)

    assert USER_TURN == USER
    assert served.turn_id is not None
    assert served.turn_id == served.token_id(USER)
    assert TextTokenizer.load(write_checkpoint(tmp_path, byte_tokenizer())).turn_id is None
    assert TextTokenizer(None, {}).turn_id is None
