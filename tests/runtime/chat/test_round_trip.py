"""Parsing returns what was rendered, whatever the text and wherever the pieces are cut."""

import json
from random import Random

import pytest

from runtime.chat.answer_parser import Part
from runtime.chat.chat_prompt import ChatPrompt
from runtime.chat.marks import DSML, THINK, THINK_END
from runtime.tokenizer.detokenizer import Detokenizer
from tests.runtime.chat.conversations import (
    Answer,
    answer,
    collected,
    conversation,
    encoder,
    marked,
    parser,
    tokenizer,
    written,
)

BATCH = 100
SLOW = [pytest.param(batch, marks=pytest.mark.slow) for batch in range(6, 30)]
BATCHES = [*range(6), *SLOW]
MARKS = {THINK, THINK_END, DSML}


def pushed(prompt: ChatPrompt, pieces: list[str]) -> list[Part]:
    reader = parser(prompt)
    return [part for piece in pieces for part in reader.push(piece)] + reader.finish()


def drawn(seed: int) -> tuple[Random, ChatPrompt, Answer, list[int]]:
    """Return a generator, and an answer as what it says and as its tokens."""
    random = Random(seed)
    request = conversation(random)
    thinking = request.get("thinking") != {"type": "disabled"}
    said = answer(random, request.get("tools", []), thinking=thinking)
    if thinking and not said.content and not said.calls:
        said.content = "so"  # an answer that is only reasoning cannot be rendered as ended
    return random, *_written(random, request, said)


def _written(random: Random, request: object, said: Answer) -> tuple[ChatPrompt, Answer, list[int]]:
    assert isinstance(request, dict)
    prompt, ids = written(random, request, said)
    return prompt, said, ids


@pytest.mark.parametrize("batch", BATCHES)
def test_what_was_rendered_is_parsed_again(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        random, prompt, said, ids = drawn(seed)
        text = marked(ids)
        cuts = sorted(random.choices(range(len(text) + 1), k=3))
        torn = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

        for pieces in ([text], list(text), torn):
            assert collected(pushed(prompt, pieces)) == (said, []), seed


@pytest.mark.parametrize("batch", [0, 1, *SLOW])
def test_every_boundary_between_two_pieces_gives_the_same(batch: int) -> None:
    for seed in range(batch * 20, (batch + 1) * 20):
        _, prompt, said, ids = drawn(seed)
        text = marked(ids)
        for cut in range(len(text) + 1):
            parts = pushed(prompt, [text[:cut], text[cut:]])
            assert collected(parts) == (said, []), (seed, cut)


@pytest.mark.parametrize("batch", range(3))
def test_token_by_token_gives_the_same(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        _, prompt, said, ids = drawn(seed)
        detokenizer = Detokenizer(tokenizer(), frozenset(range(9)), encoder().marks)
        pieces = [detokenizer.push([token_id]) for token_id in ids] + [detokenizer.finish()]

        assert collected(pushed(prompt, pieces)) == (said, []), seed


@pytest.mark.parametrize("batch", BATCHES)
def test_damaged_answers_stay_honest(batch: int) -> None:
    """Cut, repeated or swapped tokens: the same whatever the pieces, JSON always, no marks."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        random, prompt, _, ids = drawn(seed)
        text = marked(damaged(random, ids))

        parts = pushed(prompt, [text])

        found, invalid = collected(parts)
        assert collected(pushed(prompt, list(text))) == (found, invalid), seed
        assert not MARKS.intersection(found.content + found.reasoning), seed
        for name, arguments in found.calls:
            assert name in (prompt.tools or {}), seed
            assert isinstance(arguments, dict), seed
            json.dumps(arguments, allow_nan=False)


def damaged(random: Random, ids: list[int]) -> list[int]:
    """Return `ids` after a few accidents."""
    ids = list(ids)
    for _ in range(random.randint(1, 4)):
        at = random.randint(0, len(ids))
        match random.randint(0, 3):
            case 0:
                del ids[at:]
            case 1:
                del ids[at : at + random.randint(1, 4)]
            case 2:
                ids[at:at] = ids[at : at + random.randint(1, 9)]
            case _:
                ids.insert(at, random.randint(5, 270))
    return ids
