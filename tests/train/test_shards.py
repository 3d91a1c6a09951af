"""Shards are the same whoever makes them, wait in small numbers, and leave nothing behind."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.testing.stand_in.tokenizer import EOS_ID, train_tokenizer
from tests.train.render import PAD_ID, PADDING, SAID, WEIGHT_UNIT, Renderer
from tests.train.shards import ROOT, ShardReader, make_shard

TOKENS, ROWS = 300, 6


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer().save(str(path))
    return path


@pytest.fixture(scope="module")
def renderer(tokenizer_path: Path) -> Renderer:
    return Renderer(Tokenizer.from_file(str(tokenizer_path)))


def _reader(folder: Path, tokenizer: Path, *, workers: int = 2, first: int = 0) -> ShardReader:
    return ShardReader(
        folder,
        tokenizer=tokenizer,
        tokens=TOKENS,
        rows=ROWS,
        seed=5,
        workers=workers,
        first=first,
        ahead=1,
    )


def test_rows_end_where_answers_end_and_padding_has_no_weight(renderer: Renderer) -> None:
    ids, weights = make_shard(renderer, tokens=TOKENS, rows=ROWS, seed=1, number=0)

    assert ids.shape == weights.shape == (ROWS, TOKENS)
    for row, weight in zip(ids, weights, strict=True):
        length = int(np.flatnonzero(weight)[-1]) + 1
        assert (row[length - 1], weight[length - 1]) == (EOS_ID, SAID)
        assert (row[length:] == PAD_ID).all()
        assert (weight[length:] == PADDING).all()


def test_a_shard_can_be_of_votes_alone(renderer: Renderer) -> None:
    made = {
        whole: make_shard(renderer, tokens=TOKENS, rows=ROWS, seed=1, number=0, whole=whole)[0]
        for whole in (False, True)
    }
    texts = {whole: [renderer.decoded(row) for row in rows] for whole, rows in made.items()}

    assert all("votes" in text.lower() for text in texts[True])
    assert sum("votes" in text.lower() for text in texts[False]) < ROWS


@pytest.mark.slow
def test_a_reader_gets_votes_where_the_phase_says_so(tokenizer_path: Path, tmp_path: Path) -> None:
    renderer = Renderer(Tokenizer.from_file(str(tokenizer_path)))
    with ShardReader(
        tmp_path, tokenizer=tokenizer_path, tokens=TOKENS, rows=ROWS, seed=5, whole_every=2
    ) as reader:
        for number in range(2):
            ids, _ = reader.next()
            wanted, _ = make_shard(
                renderer, tokens=TOKENS, rows=ROWS, seed=5, number=number, whole=number == 1
            )
            assert (ids == wanted).all()


def test_a_shard_depends_on_seed_length_and_number(renderer: Renderer) -> None:
    def made(seed: int, tokens: int, number: int) -> bytes:
        ids, _ = make_shard(renderer, tokens=tokens, rows=2, seed=seed, number=number)
        return ids[:, :200].tobytes()

    assert made(1, 300, 0) == made(1, 300, 0)
    assert len({made(1, 300, 0), made(2, 300, 0), made(1, 301, 0), made(1, 300, 1)}) == 4


def test_the_reader_gives_the_shards_in_order_and_deletes_them(
    tmp_path: Path, tokenizer_path: Path, renderer: Renderer
) -> None:
    with _reader(tmp_path, tokenizer_path, first=3) as reader:
        for number in (3, 4, 5):
            ids, weights = reader.next()
            expected = make_shard(renderer, tokens=TOKENS, rows=ROWS, seed=5, number=number)

            assert (ids.dtype, weights.dtype) == (np.int64, np.float32)
            assert (ids == expected[0]).all()
            assert np.allclose(weights * WEIGHT_UNIT, expected[1])
            assert not (tmp_path / f"shard_{number}_ids.npy").exists()

    assert list(tmp_path.iterdir()) == []


def test_a_dead_worker_is_told_of(tmp_path: Path, tokenizer_path: Path) -> None:
    with _reader(tmp_path, tokenizer_path, workers=1) as reader:
        reader.next()
        [worker] = reader._workers
        worker.kill()
        worker.wait()
        with pytest.raises(RuntimeError, match="ended with -9"):
            list(iter(reader.next, None))


@pytest.mark.slow
def test_a_worker_ends_with_its_input(tmp_path: Path, tokenizer_path: Path) -> None:
    command = [sys.executable, "-m", "tests.train.shards", str(tmp_path)]
    command += ["--tokenizer", str(tokenizer_path)]
    command += ["--tokens", "300", "--rows", "2", "--seed", "0"]

    done = subprocess.run(
        command, cwd=ROOT, input="7\n", capture_output=True, text=True, check=True
    )

    assert done.stdout == "7\n"
    assert len(list(tmp_path.iterdir())) == 2
