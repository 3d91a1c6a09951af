"""The same bits alone, in company, in any chunks, and after any kind of reuse."""

from dataclasses import replace

import pytest
import torch

from layers.models.deepseek_v4.model import ReferenceV4
from layers.models.deepseek_v4.pool_spec import RecordFormat
from layers.weights.loading import fill_dummy
from tests.testing.direct import CPU, Chunk, Direct, Point, Row
from tests.testing.row_bytes import assert_same_bytes, held
from tests.testing.tiny_model import CONFIG, build, prompt


def cold(
    direct: Direct, tokens: list[int], stop: int, chunk: int | None = None
) -> tuple[torch.Tensor, Row]:
    """Compute positions [0, stop) of a new row; return all logits, and the row."""
    row = direct.row(tokens)
    return direct.prefill(row, stop=stop, chunk=chunk, logits=range(stop)), row


@pytest.mark.parametrize(
    ("chunk", "length"), [(1, 70), (3, 140), (7, 263), (64, 271), (100, 271), (131, 530)]
)
def test_chunks_of_any_length_give_the_same_bits(chunk: int, length: int) -> None:
    tokens, direct = prompt(length, seed=1), build()
    want, whole = cold(direct, tokens, length)

    got, row = cold(direct, tokens, length, chunk)

    assert want.isfinite().all()
    assert torch.equal(got, want)
    assert_same_bytes(held(direct, row), held(direct, whole))


@pytest.mark.parametrize(
    ("record_format", "dtype"), [("bf16", torch.bfloat16), ("fp8", torch.float32)]
)
def test_chunks_give_the_same_bits_in_low_precision(
    record_format: RecordFormat, dtype: torch.dtype
) -> None:
    tokens, direct = prompt(140, seed=2), build(record_format, dtype)
    want, whole = cold(direct, tokens, 140)

    got, row = cold(direct, tokens, 140, 37)

    assert want.isfinite().all()
    assert torch.equal(got, want)
    assert_same_bytes(held(direct, row), held(direct, whole))


def test_company_changes_no_bit() -> None:
    direct = build()
    prompts = [prompt(length, seed=length) for length in (1, 5, 33, 140, 258, 391)]
    alone = [cold(direct, tokens, len(tokens)) for tokens in prompts]
    rows = [direct.row(tokens) for tokens in prompts]
    parts: list[list[torch.Tensor]] = [[] for _ in rows]
    sizes = torch.Generator().manual_seed(3)

    while any(row.done < len(row.tokens) for row in rows):
        chunks: list[Chunk] = []
        for row in rows:
            length = int(torch.randint(1, 90, (), generator=sizes))
            stop = min(len(row.tokens), row.done + length)
            if stop > row.done:
                chunks.append(Chunk(row, stop, logits=range(row.done, stop)))
        counts = [chunk.stop - chunk.row.done for chunk in chunks]
        logits, _ = direct.step(chunks)
        for chunk, part in zip(chunks, logits.split(counts), strict=True):
            parts[rows.index(chunk.row)].append(part)

    for row, part, (want, whole) in zip(rows, parts, alone, strict=True):
        assert torch.equal(torch.cat(part), want)
        assert_same_bytes(held(direct, row), held(direct, whole))


def test_decoding_together_equals_one_prefill() -> None:
    direct = build()
    prompts = [prompt(length, seed=length) for length in (2, 130, 259, 64)]
    alone = [cold(direct, tokens, len(tokens))[0] for tokens in prompts]
    rows = [direct.row(tokens) for tokens in prompts]
    for row in rows:
        if len(row.tokens) > 9:
            direct.prefill(row, stop=len(row.tokens) - 9, logits=())

    while unfinished := [row for row in rows if row.done < len(row.tokens)]:
        at = [(rows.index(row), row.done) for row in unfinished]
        for (i, position), logits in zip(at, direct.decode(unfinished), strict=True):
            assert torch.equal(logits, alone[i][position])


@pytest.mark.parametrize("record_format", ["fp32", "fp8"])
def test_a_row_resumed_at_a_point_inside_a_chunk_equals_a_cold_one(
    record_format: RecordFormat,
) -> None:
    length = 300 if record_format == "fp32" else 150
    tokens, direct = prompt(length, seed=4), build(record_format)
    want, whole = cold(direct, tokens, length)
    marks = [p for p in (1, 3, 4, 64, 65, 127, 128, 129, 130, 255, 256, 257, 299) if p < length]
    if record_format == "fp8":
        marks = [3, 129]
    source = direct.row(tokens)
    direct.prefill(source, stop=2, logits=())
    inner = [p for p in marks if p > 2]
    _, points = direct.step([Chunk(source, length, points=inner)])

    for point in points:
        row = direct.resume(tokens, point, source.pages)
        got = direct.prefill(row, chunk=90, logits=range(point.position, length))
        assert torch.equal(got, want[point.position :]), point.position
        assert_same_bytes(held(direct, row), held(direct, whole))
        direct.release(row)


def test_a_saved_ring_and_window_also_serve_the_position_before() -> None:
    tokens, direct = prompt(270, seed=5), build()
    for position in (4, 5, 8, 129, 130, 256, 257, 270):
        want, source = cold(direct, tokens, position)
        point = Point(position, source.window, source.ring)
        row = direct.resume(tokens, point, source.pages)
        row.done = row.write_from = position - 1

        got, _ = direct.step([Chunk(row, position, logits=[position - 1])])

        assert torch.equal(got[0], want[-1]), position
        direct.release(row)
        direct.release(source)


def test_a_replay_restores_window_state_and_logits() -> None:
    # Layer l sees 127 window positions back in each of the layers below it.
    until = 128 + 127 * (CONFIG.num_hidden_layers - 1) + 70
    start, length = 70, until + 40
    tokens, direct = prompt(length, seed=6), build()
    want, whole = cold(direct, tokens, length)
    _, source = cold(direct, tokens, until)

    row = direct.replay(tokens, source.pages, start, until)
    before = {name: direct.pools.tensors()[name].clone() for name in ("c4", "c128", "indexer")}
    got = direct.prefill(row, stop=until, chunk=100, logits=[until - 1])
    after = {name: direct.pools.tensors()[name] for name in before}

    assert torch.equal(got[0], want[until - 1])
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor), f"{name} was written before the replay's end"
    rest = direct.prefill(row, chunk=13, logits=range(until, length))
    assert torch.equal(rest, want[until:])
    assert_same_bytes(held(direct, row), held(direct, whole))


@pytest.mark.parametrize(("window", "ratio"), [(2, 4), (2, 128), (100, 128)])
def test_a_replay_restores_state_that_a_short_window_does_not_reach(
    window: int, ratio: int
) -> None:
    config = replace(
        CONFIG, sliding_window=window, num_hidden_layers=2, compress_ratios=(ratio, ratio)
    )
    model = ReferenceV4(config, CPU, torch.float32)
    fill_dummy(model, 7)
    until, length = 255, 259
    tokens, direct = prompt(length, seed=6), build(model=model)
    want, source = cold(direct, tokens, length)

    row = direct.replay(tokens, source.pages, until - direct.spec.replay_tokens, until)
    direct.prefill(row, stop=until, logits=())
    got = direct.prefill(row, logits=range(until, length))

    assert torch.equal(got, want[until:])


def test_only_units_that_a_step_was_given_are_written() -> None:
    tokens, direct = prompt(200, seed=8), build()
    before = {name: tensor.clone() for name, tensor in direct.pools.tensors().items()}

    _, row = cold(direct, tokens, 200)

    given = {
        "swa": {*row.window.values()},
        "c4": {*row.pages},
        "c128": {page * 2 // 64 for page in row.pages},
        "indexer": {*row.pages},
        "c4_state": {row.ring},
        "c128_state": {row.ring},
    }
    for name, tensor in direct.pools.tensors().items():
        same = tensor.view(torch.uint8) == before[name].view(torch.uint8)
        written = {unit for unit in range(tensor.shape[1]) if not bool(same[:, unit].all())}
        assert written == given[name], name
