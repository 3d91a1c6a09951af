"""Control tokens of the V4 chat format, and the marks that stand for some of them in a text.

An answer's text is searched for the end of its reasoning and for its tool calls, and only the
tokens themselves may count: a model that quotes `</think>` in ordinary tokens has written text.
So where such a token stood, the text gets one lone surrogate. No decoder of UTF-8 ever makes one,
stop strings pass over it, and being one character it cannot be torn by a chunk's end.
"""

from types import MappingProxyType

from tokenizers import Tokenizer

THINK = "\ud800"
THINK_END = "\ud801"
DSML = "\ud802"

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
# Source: the V4 section of deepseek-recipe, which renders with exactly these.
SPELLING = MappingProxyType({THINK: "<think>", THINK_END: "</think>", DSML: "｜DSML｜"})
_REQUIRED = (BOS, EOS, USER, ASSISTANT, *SPELLING.values())


def knows_v4(tokenizer: Tokenizer) -> bool:
    """Say whether every control token of the V4 format is one added token of `tokenizer`."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return added.issuperset(_REQUIRED)


def marks_by_id(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the mark of each token id that has one; `tokenizer` must know V4."""
    ids = {mark: tokenizer.token_to_id(text) for mark, text in SPELLING.items()}
    return {token_id: mark for mark, token_id in ids.items() if token_id is not None}
