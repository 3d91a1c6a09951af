"""The default model's tokenizer: a byte-level BPE of 2,048 ids, trained on the training data.

The commonest words of the data are tokens as they are, whatever merges would have made of them
(`ignore_merges`); the merges are learnt from all other words and from made-up ones, and spell
what is in no list. Each digit is a token of its own, and every byte is one.
"""

import functools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tests.testing.stand_in.tokenizer import BOS_ID, EOS_ID, SPECIALS
from tests.testing.stand_in.tokenizer import train_tokenizer as stand_in
from tests.train import lexicon
from tests.train.dialogue import Dialogue
from tests.train.mixture import sample
from tests.train.render import PAD_ID, Renderer

VOCAB_SIZE = 2048
# So many ids are for pieces of words that are no tokens themselves.
MERGES = 260
DIALOGUES = 2500
_MADE_UP = 20_000
_MOST_COUNTED = 50


def train_tokenizer(seed: int = 0, *, dialogues: int = DIALOGUES) -> Tokenizer:
    """Return the tokenizer, of exactly `VOCAB_SIZE` ids; the same for the same arguments.

    dialogues  how many it is trained on; takes milliseconds for each
    """
    rng = Random(f"tokenizer {seed}")
    counts = _words(rng, dialogues)
    common = sorted(counts, key=lambda word: (-counts[word], word))
    # A byte is a token anyway.
    common = [word for word in common if len(word) > 1]
    whole = common[: VOCAB_SIZE - len(SPECIALS) - 256 - MERGES]
    rare = [word for word in common[len(whole) :] for _ in range(min(counts[word], _MOST_COUNTED))]
    made_up = [f"Ġ{lexicon.made_up(rng)}" for _ in range(_MADE_UP)]
    description = _pieces([*rare, *made_up])
    vocab: dict[str, int] = description["model"]["vocab"]
    free = (word for word in [*common, *made_up] if word not in vocab)
    for token_id in range(len(vocab), VOCAB_SIZE):
        vocab[next(free)] = token_id
    description["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(description))


def write_tokenizer(
    folder: Path, *, max_tokens: int, seed: int = 0, dialogues: int = DIALOGUES
) -> Tokenizer:
    """Write `tokenizer.json` and `tokenizer_config.json` to `folder`; return the tokenizer.

    max_tokens  the model's context length
    """
    tokenizer = train_tokenizer(seed, dialogues=dialogues)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[BOS_ID],
        "eos_token": SPECIALS[EOS_ID],
        "pad_token": SPECIALS[PAD_ID],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_tokens,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return tokenizer


def _words(rng: Random, dialogues: int) -> Counter[str]:
    """Count the words of generated dialogues, spelled in the byte-level alphabet."""
    splitter = _splitter()
    counts: Counter[str] = Counter()
    for _ in range(dialogues):
        for text in _texts(sample(rng, 512)):
            counts.update(word for word, _ in splitter.pre_tokenize_str(text))
    return counts


def _texts(dialogue: Dialogue) -> Iterator[str]:
    """Yield what is encoded of a dialogue, piece by piece, as `Renderer` cuts it."""
    renderer = _plain_renderer()
    yield renderer.decoded(renderer.head(dialogue))
    for pieces in renderer.pieces(
        [turn for turn in dialogue.turns if turn.role != "system"], mode="think"
    ):
        if isinstance(pieces[0], str):
            yield pieces[0]


@functools.cache
def _plain_renderer() -> Renderer:
    """Return a renderer with the stand-in's tokenizer: the pieces are texts with any."""
    return Renderer(stand_in())


def _pieces(words: list[str]) -> dict[str, Any]:
    """Return a tokenizer's description, its merges learnt from `words`."""
    learner = Tokenizer(models.BPE())
    # The words are in the byte-level alphabet already, which has no white space.
    learner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIALS) + 256 + MERGES,
        min_frequency=1,
        special_tokens=list(SPECIALS),
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    learner.train_from_iterator([" ".join(words)], trainer)
    learner.pre_tokenizer = _splitter()
    learner.decoder = decoders.ByteLevel()
    return json.loads(learner.to_str())


def _splitter() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
