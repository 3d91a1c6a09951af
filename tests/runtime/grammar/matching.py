"""Whether rules of a grammar take a text, byte by byte."""

import json
from typing import Any

import numpy as np
import xgrammar

from runtime.grammar.ebnf import Rules
from runtime.grammar.schema_rules import schema_text

_BYTES = [bytes([value]) for value in range(256)]
END = len(_BYTES)
_COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([*_BYTES, b"</s>"], xgrammar.VocabType.RAW, stop_token_ids=[END]),
    max_threads=1,
    cache_enabled=False,
)


def compiled(text: str) -> xgrammar.CompiledGrammar:
    """Return rules compiled."""
    return _COMPILER.compile_grammar(xgrammar.Grammar.from_ebnf(text))


def compiled_rules(rules: Rules, expression: str) -> xgrammar.CompiledGrammar:
    """Return the grammar of outputs that follow an expression."""
    return compiled(rules.text(expression))


def takes(grammar: xgrammar.CompiledGrammar, text: str) -> bool:
    """Whether a text is a whole output."""
    matcher = xgrammar.GrammarMatcher(grammar)
    return matcher.accept_string(text) and matcher.accept_token(END)


def taken(schema: Any, values: list[Any]) -> list[Any]:
    """Return the values that a schema's grammar takes, as Python spells them."""
    grammar = compiled(schema_text(json.loads(json.dumps(schema))))
    return [value for value in values if takes(grammar, json.dumps(value, ensure_ascii=False))]


def allowed_tokens(text: str, before: str, tokens: list[str]) -> list[str]:
    """Return the tokens that a mask lets follow a text, of a vocabulary of these and all bytes."""
    vocabulary = [*_BYTES, b"</s>", *(token.encode() for token in tokens)]
    info = xgrammar.TokenizerInfo(vocabulary, xgrammar.VocabType.RAW, stop_token_ids=[END])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    matcher = xgrammar.GrammarMatcher(compiler.compile_grammar(xgrammar.Grammar.from_ebnf(text)))
    assert matcher.accept_string(before)
    bits = np.zeros((1, -(-len(vocabulary) // 32)), dtype=np.int32)
    matcher.fill_next_token_bitmask(bits)
    flat = np.unpackbits(bits.view(np.uint8), bitorder="little")
    return [token for k, token in enumerate(tokens, END + 1) if flat[k]]


def compiled_tag(text: str) -> xgrammar.CompiledGrammar:
    """Return a structural tag compiled."""
    return _COMPILER.compile_structural_tag(text)
