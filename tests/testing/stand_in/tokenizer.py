"""Tokenizer of the stand-in.

Byte-level BPE with 512 ids: V4's control tokens, 256 bytes, and merges trained on the text below.
Every string can be encoded, and the ids are few enough for a tiny embedding. As with V4 there is
no Jinja template: the control tokens say that chats are written in V4's own format.
"""

import json
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
SPECIALS = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
)
BOS_ID, EOS_ID = 0, 1
THINK_END_ID = SPECIALS.index("</think>")
DSML_ID = SPECIALS.index("｜DSML｜")

TRAINING_TEXT = """\
A reader opens the same long report every morning and asks one more question about it.
The server has seen those pages before, so it should not have to read them again.
What was computed yesterday for the first thousand words is still true today, word for word.
Only the question is new; only the answer has to be written.
There are many readers, and each of them holds a different page open at the same time.
When the shelf is full, the book that nobody has touched for the longest time goes first.
It would be wrong to give one reader the notes of another, however similar they look.
Who asks twice for the same thing should hear the same thing twice.
Is the window open? No, it was closed when the rain came in from the north.
Please write a short list: one, two, three, four, five, six, seven, eight, nine, ten.
for page in pages:
    if page.count == 0:
        return None
def add(left: int, right: int) -> int:
    return left + right
{"name": "reader", "pages": [1, 2, 3], "open": true, "next": null}
Das Fenster ist offen, und die Straße führt über die Brücke zum Fluß.
Où est la bibliothèque ? Elle est à côté de l'école, près de la gare.
今天的天气很好。我们一起读一本书。你好,世界!
Сегодня мы читаем длинную книгу.
Prices: 12.50, 99.95, 100, 2024, 365 days, 24 hours, 60 minutes.
"""


def train_tokenizer() -> Tokenizer:
    """Return the stand-in's tokenizer, of exactly `VOCAB_SIZE` ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(TRAINING_TEXT.splitlines(keepends=True), trainer)
    missing = VOCAB_SIZE - tokenizer.get_vocab_size()
    fillers = [f"<|filler_{number}|>" for number in range(missing)]
    cast(Any, tokenizer).add_special_tokens(fillers)
    return tokenizer


def write_tokenizer(folder: Path, *, max_tokens: int) -> Tokenizer:
    """Write `tokenizer.json` and `tokenizer_config.json` to `folder`; return the tokenizer.

    max_tokens  the model's context length
    """
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS_ID],
        "eos_token": SPECIALS[EOS_ID],
        "pad_token": SPECIALS[2],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_tokens,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return tokenizer


def speaking_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that are whole printable text by themselves, and those that end something.

    The end of the reasoning is one: a stand-in that could not stop thinking would never answer.
    """
    ids = [EOS_ID, THINK_END_ID]
    for token_id in range(len(SPECIALS), tokenizer.get_vocab_size()):
        text = tokenizer.decode([token_id], skip_special_tokens=True)
        if text and all(letter.isprintable() or letter == "\n" for letter in text):
            ids += [] if "\N{REPLACEMENT CHARACTER}" in text else [token_id]
    return ids
