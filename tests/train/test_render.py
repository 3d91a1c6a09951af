"""Rendered rows are what the server has in its context, token for token."""

from random import Random

import pytest
from tokenizers import Tokenizer

from runtime.chat.v4_encoder import V4Encoder
from tests.testing.stand_in.tokenizer import EOS_ID, train_tokenizer
from tests.train.dialogue import Dialogue, Turn
from tests.train.mixture import sample
from tests.train.render import SAID, Renderer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer: Tokenizer) -> Renderer:
    return Renderer(tokenizer)


def _dialogues(count: int) -> list[Dialogue]:
    rng = Random("rows")
    return [sample(rng, 200) for _ in range(count)]


def test_a_row_is_the_servers_prompt_and_its_answer(
    tokenizer: Tokenizer, renderer: Renderer
) -> None:
    """The server's prompt of the last answer, then that answer, is the whole row."""
    encoder = V4Encoder(tokenizer)
    for row in renderer.rows(_dialogues(100), 4096):
        assert row is not None
        prompt = encoder.encode(row.dialogue.request(len(row.dialogue.turns) - 1)).token_ids

        assert row.ids[: len(prompt)] == prompt
        assert row.ids[-1] == EOS_ID
        assert row.weights[len(prompt) :] == [SAID] * (len(row.ids) - len(prompt))


def test_a_row_goes_on_as_the_server_renders_it_for_the_next_turn(
    tokenizer: Tokenizer, renderer: Renderer
) -> None:
    """Sent back as history, a row without reasoning that is dropped begins the next prompt."""
    encoder = V4Encoder(tokenizer)
    for dialogue in _dialogues(100):
        if dialogue.thinking and not dialogue.tools:
            continue
        [row] = renderer.rows([dialogue], 4096)
        assert row is not None
        turns = [*row.dialogue.turns, Turn("user", "And?")]
        request = Dialogue(
            turns,
            tools=dialogue.tools,
            response_format=dialogue.response_format,
            thinking=dialogue.thinking,
            effort=dialogue.effort,
        ).request(len(turns))

        assert encoder.encode(request).token_ids[: len(row.ids)] == row.ids
