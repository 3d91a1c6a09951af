"""Tests of runtime.engine.engine on a scheduler that counts; on a network: tests/end_to_end."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from runtime.engine.engine import Engine
from runtime.errors import BadRequest, NotFound, PromptTooLong
from tests.runtime.engine.counting import COUNT, DEADLINE_S, counting_engine
from tests.runtime.stand_ins import SILENT_AT

TEMPLATE_LESS = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A running engine that counts."""
    with counting_engine(tmp_path_factory.mktemp("model")) as engine:
        yield engine


def in_flight(engine: Engine) -> int:
    return engine._service.manager.in_flight


def test_a_reply_is_what_the_native_endpoint_says(engine: Engine) -> None:
    reply = engine.generate("A", COUNT, rid="mine")

    assert (reply["text"], reply["output_ids"]) == ("BCD", [66, 67, 68])
    meta = reply["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"]) == ("mine", 1, 3)
    assert meta["finish_reason"] == {"type": "length", "length": 3}


def test_batches_and_choices_come_as_a_list(engine: Engine) -> None:
    batch = engine.generate(["A", "I"], [COUNT, {"max_new_tokens": 1}])
    choices = engine.generate(input_ids=[[10], [20]], sampling_params=COUNT, n=2)

    assert [reply["text"] for reply in batch] == ["BCD", "J"]
    assert [reply["output_ids"][0] for reply in choices] == [11, 11, 21, 21]


def test_a_batch_may_be_larger_than_the_queue(tmp_path: Path) -> None:
    with counting_engine(tmp_path, max_queued_requests=3, max_running_requests=2) as engine:
        replies = engine.generate(input_ids=[[k % 50] for k in range(600)], sampling_params=COUNT)
        choices = engine.generate(["A", "C", "I"], COUNT, n=4)

    assert [reply["output_ids"][0] for reply in replies] == [k % 50 + 1 for k in range(600)]
    assert [reply["text"] for reply in choices] == ["BCD"] * 4 + ["DEF"] * 4 + ["JKL"] * 4


def test_a_batch_never_fills_more_than_the_queue(tmp_path: Path) -> None:
    prompts = [[k] for k in range(10)]
    with counting_engine(tmp_path, "queueing", max_queued_requests=4) as engine:
        replies = engine.generate(input_ids=prompts, sampling_params=COUNT)
        stream = engine.generate(input_ids=prompts, sampling_params=COUNT, stream=True)
        streamed = {chunk["index"]: chunk["output_ids"] for chunk in stream}

    assert [reply["output_ids"] for reply in replies] == [[k + 1, k + 2, k + 3] for k in range(10)]
    assert [streamed[k] for k in range(10)] == [reply["output_ids"] for reply in replies]


def test_a_stream_says_each_answer_so_far(engine: Engine) -> None:
    chunks = list(engine.generate("A", COUNT, stream=True))

    assert chunks[-1]["text"] == "BCD"
    assert all("BCD".startswith(chunk["text"]) for chunk in chunks)
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert [len(chunk["output_ids"]) for chunk in chunks] == counts  # not one list that grows


def test_loops_and_threads_may_ask_at_once(engine: Engine) -> None:
    async def many(start: int) -> list[list[int]]:
        asked = [engine.async_generate(input_ids=[k], sampling_params=COUNT) for k in range(8)]
        stream = await engine.async_generate(input_ids=[start], sampling_params=COUNT, stream=True)
        last = [chunk["output_ids"] async for chunk in stream][-1]
        return [*(reply["output_ids"] for reply in await asyncio.gather(*asked)), last]

    def one(start: int) -> list[int]:
        return engine.generate(input_ids=[start], sampling_params=COUNT)["output_ids"]

    with ThreadPoolExecutor(8) as pool:
        loops = [pool.submit(lambda k=k: asyncio.run(many(k))) for k in range(4)]
        plain = [pool.submit(one, k) for k in range(16)]

        expected = [[k + 1, k + 2, k + 3] for k in range(16)]
        assert [future.result(DEADLINE_S) for future in plain] == expected
        for k, future in enumerate(loops):
            assert future.result(DEADLINE_S) == [*expected[:8], expected[k]]


def test_a_running_loop_may_also_block(engine: Engine) -> None:
    async def ask() -> str:
        return engine.generate("A", COUNT)["text"]

    assert asyncio.run(ask()) == "BCD"


def test_two_engines_share_nothing(engine: Engine, tmp_path: Path) -> None:
    with counting_engine(tmp_path) as other:
        assert other.generate("A", COUNT)["text"] == engine.generate("A", COUNT)["text"]
        assert other.server_info()["pid"] != engine.server_info()["pid"]

    assert engine.generate("A", COUNT)["text"] == "BCD"


def test_who_stops_waiting_ends_the_request(engine: Engine) -> None:
    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await engine.async_generate(input_ids=[SILENT_AT])

    asyncio.run(impatient())
    stream = engine.generate(input_ids=[SILENT_AT], stream=True)
    next(stream)
    assert in_flight(engine) == 1
    stream.close()
    engine.tokenize("")  # the closing comes before it
    assert in_flight(engine) == 0


def test_a_request_is_aborted_by_its_name(engine: Engine) -> None:
    began = threading.Event()

    def ask() -> str:
        last: Any = None
        for chunk in engine.generate(input_ids=[SILENT_AT], rid="long", stream=True):
            began.set()
            last = chunk
        return last["meta_info"]["finish_reason"]["type"]

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask)
        assert began.wait(DEADLINE_S)

        assert engine.abort("lon") == 0
        assert engine.abort("long") == 1
        assert asking.result(DEADLINE_S) == "abort"
    assert engine.abort(all=True) == 0
    with pytest.raises(BadRequest, match="rid"):
        engine.abort()


def test_what_cannot_be_asked_raises_what_the_server_would_reply(engine: Engine) -> None:
    with pytest.raises(BadRequest, match="either text or input_ids"):
        engine.generate()
    with pytest.raises(BadRequest, match="temperature"):
        engine.generate("a", {"temperature": -1})
    with pytest.raises(BadRequest, match="lora_path is not supported"):
        engine.generate("a", lora_path="x")  # type: ignore[call-arg]
    with pytest.raises(BadRequest, match="temperature"):
        list(engine.generate("a", {"temperature": -1}, stream=True))
    with pytest.raises(PromptTooLong):
        engine.generate(input_ids=[5] * 2000)
    with pytest.raises(BadRequest, match="choices"):
        engine.score("a", [])
    with pytest.raises(NotFound):
        engine.chat(TEMPLATE_LESS, model="gpt-4")
    with pytest.raises(BadRequest, match="chat template"):
        list(engine.chat(TEMPLATE_LESS, stream=True))
    with pytest.raises(TypeError, match="did you mean max_tokens"):
        engine.chat(TEMPLATE_LESS, max_token=3)


def test_text_becomes_ids_and_ids_text(engine: Engine) -> None:
    assert engine.tokenize("ab") == [97, 98]
    assert engine.tokenize(["a", "bc"]) == [[97], [98, 99]]
    assert engine.detokenize([97, 256, 98]) == "ab"
    assert engine.detokenize((97, 256), skip_special_tokens=False) == "a<eos>"


def test_facts_are_told_under_both_names(engine: Engine) -> None:
    info = engine.server_info()

    assert info["status"] == "ready"
    assert info["vocab_size"] == 300
    assert engine.get_server_info()["pid"] == info["pid"]


def test_an_async_context_ends_it_too(tmp_path: Path) -> None:
    async def use() -> Engine:
        with counting_engine(tmp_path) as engine:
            async with engine as same:
                assert (await same.async_generate("A", COUNT))["text"] == "BCD"
        return engine

    engine = asyncio.run(use())

    assert not engine._thread._thread.is_alive()
