"""Chats of models that think: what the next turn finds in the cache, and that it changes nothing.

Templates leave the reasoning of earlier turns out, so that the next prompt parts from what was
computed where the answer begins. Up to there it is found to the token; what it says behind that is
prefilled ahead, while the user reads (`runtime/server/next_turn.py`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.chat_turns import Conversation
from tests.runtime.chat.families import end_id
from tests.testing import gpt_oss_checkpoints, gqa_checkpoints, mla_checkpoints
from tests.testing.chat_checkpoints import FAMILY_OF, answer_fields, write_chat_tokenizer
from tests.testing.server_process import ServerProcess, running_server

Json = dict[str, Any]
pytestmark = pytest.mark.slow
NETWORKS: dict[str, Callable[..., Any]] = {
    "qwen3": lambda **fields: gqa_checkpoints.reference("qwen3", **fields),
    "r1": lambda **fields: mla_checkpoints.reference("v3", **fields),
    "gpt_oss": lambda **fields: gpt_oss_checkpoints.reference(
        "wide", max_position_embeddings=4096, **fields
    ),
}
# With windows only prompts' ends are resume points: the first mark of the answer is not found.
LOST = {"gpt_oss": 1}
ASKED = ("Who lives in the old house?", "Since when?", "Is the window open now?")


@contextmanager
def served(name: str, folder: Path, *flags: str) -> Iterator[ServerProcess]:
    """Serve a random checkpoint that chats as a model does."""
    model = NETWORKS[name](eos_token_id=end_id(FAMILY_OF[name]))
    write_chat_tokenizer(name, gqa_checkpoints.write(model, folder))
    pools = ("--full-pages", "64", "--chunked-prefill-size", "96")
    with running_server(
        "--model-path", str(folder), "--dtype", "float32", *pools, *flags
    ) as server:
        yield server


def modes(name: str) -> list[tuple[bool, Json]]:
    """Return whether answers think, and the fields of a chat that say so."""
    if name != "qwen3":
        return [(True, {})]
    return [(on, {"chat_template_kwargs": {"enable_thinking": on}}) for on in (True, False)]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_next_turn_finds_all_that_it_keeps(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path) as server:
        for thinks, mode in modes(name):
            chat = Conversation(server, answer_fields(name, thinks=thinks), mode, ahead=True)
            turns = [chat.turn(text) for text in ASKED]
            chat.check_cold()

            assert turns[0][0] == 0
            for (found, possible, length), text in zip(turns[1:], ASKED[1:], strict=True):
                assert found == possible
                # What the user says, and what closes that turn and opens the answer's.
                assert len(text) < length - found < len(text) + 60


@pytest.mark.parametrize("name", NETWORKS)
def test_without_prefill_it_finds_all_up_to_the_first_difference(name: str, tmp_path: Path) -> None:
    with served(name, tmp_path, "--disable-next-turn-prefill") as server:
        for thinks, mode in modes(name):
            chat = Conversation(server, answer_fields(name, thinks=thinks), mode, ahead=False)
            turns = [chat.turn(text) for text in ASKED]
            chat.check_cold()

            for found, possible, _ in turns[1:]:
                assert possible - LOST.get(name, 0) <= found <= possible
