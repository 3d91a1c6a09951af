"""A scheduler here and a network in another process give the tokens of one process."""

import random
import tempfile
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from mem_cache.spec import TreeSpec
from runtime.executor.interface import Executor
from runtime.executor.remote import RemoteExecutor
from runtime.messages import Generate, Grammar, Logprobs, Output, Sampling, TokenLogprobs, pack_ids
from runtime.wire.channel import SchedulerChannel
from tests.runtime.wire.channels import WAIT_S
from tests.runtime.wire.queue_processes import child
from tests.testing.fake_grammars import FakeGrammars
from tests.testing.network_worker import ROWS, SIZES, local_executor
from tests.testing.scheduler_rig import Rig
from tests.testing.tiny_model import CONFIG

WORKER = "tests.testing.network_worker"
A = Grammar("regex", "a")


@pytest.fixture
def remote() -> Iterator[RemoteExecutor]:
    """An executor whose network is in a worker process."""
    with tempfile.TemporaryDirectory() as folder:
        scheduler = SchedulerChannel.create(
            ranks=1, folder=folder, plans_bytes=1 << 20, results_bytes=1 << 20
        )
        address = msgspec.json.encode(scheduler.addresses[0]).decode()
        with child(address, module=WORKER):
            scheduler.accept(WAIT_S)
            yield RemoteExecutor(scheduler)
            scheduler.close()


def requests(seed: int) -> list[Generate]:
    """Return prompts that share beginnings, and wishes of every kind."""
    draw = random.Random(seed)
    shared = draw.choices(range(CONFIG.vocab_size), k=300)
    found: list[Generate] = []
    for k in range(10):
        tail = draw.choices(range(CONFIG.vocab_size), k=draw.randint(1, 40))
        prompt = shared[: draw.choice([0, 7, 300])] + tail
        sampling = Sampling(
            draw.randint(1, 12),
            seed=draw.getrandbits(64),
            temperature=draw.choice([0.0, 1.0]),
            top_p=draw.choice([1.0, 0.8]),
            presence_penalty=draw.choice([0.0, 0.5]),
            repetition_penalty=draw.choice([1.0, 1.3]),
            min_new_tokens=draw.choice([0, 3]),
            stop_token_ids=(5, 6),
            logit_bias=draw.choice([{}, {3: 1.5}]),
            grammar=A if k % 4 == 3 else None,
        )
        logprobs = Logprobs(0 if k == 4 else 999, 3, (4,)) if k % 3 == 1 else None
        found.append(Generate(k + 1, pack_ids(prompt), sampling, logprobs=logprobs))
    return found


def answers(executor: Executor, seed: int) -> list[list[Output]]:
    """Return what all requests are sent."""
    grammars = FakeGrammars(CONFIG.vocab_size)
    grammars.allowed = np.full_like(grammars.all, 0x5A5A5A5A)
    rig = Rig(
        SIZES,
        spec=TreeSpec(),
        rows=ROWS,
        chunk=64,
        vocab=CONFIG.vocab_size,
        runner=executor,
        grammars=grammars,
        overlap=True,
    )
    asked = requests(seed)
    due = [*asked]
    # Whoever polls a worker turns more often; what counts is how many steps were launched.
    while due or rig.busy:
        if due and len(rig.plans) >= 2 * (len(asked) - len(due)):
            rig.socket.inbox.append(due.pop(0))
        grammars.answer()
        rig.scheduler.turn()
    rig.assert_conserved()
    return [rig.outputs(message.request_id) for message in asked]


def joined(outputs: list[Output]) -> tuple[list[int], TokenLogprobs, list[TokenLogprobs], object]:
    """Return tokens, log-probabilities and end of a request, however they were sent."""
    tokens = [token for one in outputs for token in one.token_ids]
    own = TokenLogprobs()
    for one in outputs:
        own.extend(one.logprobs)
    prompt = [one.prompt_logprobs.part(0, None) for one in outputs if one.prompt_logprobs]
    return tokens, own, prompt, (outputs[-1].finish, outputs[-1].matched_stop, outputs[-1].error)


def test_a_worker_gives_the_tokens_of_one_process(remote: RemoteExecutor) -> None:
    here = answers(local_executor(), seed=11)
    there = answers(remote, seed=11)

    assert [*map(joined, there)] == [*map(joined, here)]
    assert sum(len(one.token_ids) for each in here for one in each) > 40
    assert any(joined(each)[1].top for each in here)
    assert any(joined(each)[2] for each in here)
