"""What grammar processes are forked with: a compiler for the checkpoint, or a reason."""

import sys
from pathlib import Path

import msgspec
import pytest

from runtime.errors import GrammarError
from runtime.grammar.nursery import NurserySettings, load_tools


def test_the_compiler_knows_the_vocabulary(settings: NurserySettings) -> None:
    from xgrammar import GrammarMatcher

    matcher = GrammarMatcher(load_tools(settings).compiler.compile_regex("ß"))

    assert matcher.accept_string("ß")
    assert matcher.accept_token(settings.eos_token_ids[0])


def test_without_xgrammar_the_reason_names_it(
    settings: NurserySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)

    with pytest.raises(GrammarError, match="need xgrammar"):
        load_tools(settings)


def test_a_model_without_an_end_token_is_refused(settings: NurserySettings) -> None:
    with pytest.raises(GrammarError, match="end token"):
        load_tools(msgspec.structs.replace(settings, eos_token_ids=[]))


def test_a_checkpoint_without_tokenizer_is_refused(
    settings: NurserySettings, tmp_path: Path
) -> None:
    with pytest.raises(GrammarError, match=r"tokenizer\.json"):
        load_tools(msgspec.structs.replace(settings, tokenizer_path=str(tmp_path)))
