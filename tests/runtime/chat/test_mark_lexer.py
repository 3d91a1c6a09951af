"""Tests of runtime.chat.mark_lexer."""

from runtime.chat.answer_formats import CLOSE, OPEN
from runtime.chat.mark_lexer import Lexeme, MarkLexer

SPELLED = {"<tool_call>": OPEN, "</tool_call>": CLOSE}


def test_tokens_and_spellings_are_marks() -> None:
    lexemes = MarkLexer(SPELLED).push(f"a<tool_call>b{CLOSE}")

    assert lexemes == [Lexeme("a"), Lexeme("<tool_call>", OPEN), Lexeme("b"), Lexeme(CLOSE, CLOSE)]
    assert [lexeme.shown for lexeme in lexemes] == ["a", "<tool_call>", "b", "</tool_call>"]


def test_what_may_begin_a_spelling_is_held_back() -> None:
    lexer = MarkLexer(SPELLED)

    assert lexer.push("a<<tool") == [Lexeme("a<")]
    assert lexer.push("_call>") == [Lexeme("<tool_call>", OPEN)]
    assert lexer.push("</") == []
    assert lexer.finish() == [Lexeme("</")]
    assert lexer.finish() == []


def test_a_spelling_is_text_where_the_tokenizer_has_the_token() -> None:
    assert MarkLexer({}).push("<tool_call>") == [Lexeme("<tool_call>")]
