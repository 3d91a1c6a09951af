"""The synthetic checkpoint is like the published one, and the real loader takes it."""

import io
import json
from pathlib import Path

import pytest
import torch

import tests.bench.loading.files as files
from layers.models.deepseek_v4.config import parse_config
from layers.models.deepseek_v4.model import ReferenceV4
from layers.parallel.shares import Shares
from layers.weights.checkpoint import WeightError
from layers.weights.loading import load_weights
from layers.weights.part import Part
from tests.bench.loading.__main__ import parse
from tests.bench.loading.files import drop_from_memory, shards_of, write_checkpoint
from tests.bench.loading.plain_reader import loaded_ranges, plain_read
from tests.bench.loading.published import DraftHead, Stored, config_of, dealt, stored_tensors
from tests.bench.loading.rank import LoneRank, load_share
from tests.end_to_end.tiny_model import CONFIG

SIZES = {"layers": 5, "experts": 6, "shards": 7}


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Have files written for a network of a megabyte."""
    monkeypatch.setattr(files, "config_of", lambda *sizes: (CONFIG, parse_config(CONFIG)))


def network_of(rank: int) -> ReferenceV4:
    """Return a rank's half of that network."""
    return ReferenceV4(parse_config(CONFIG), torch.device("cpu"), ranks=LoneRank(Shares(rank, 2)))


def test_counts_and_bytes_are_those_that_were_published() -> None:
    _, config = config_of(43, 256, "mtp")
    mtp, dspark = stored_tensors(config, "mtp"), stored_tensors(config, "dspark")

    assert len(mtp) == 69_187
    assert sum(tensor.nbytes for tensor in mtp) == pytest.approx(159.6e9, rel=1e-3)
    assert sum(tensor.nbytes for tensor in dspark) == pytest.approx(166.9e9, rel=1e-3)
    assert _count(mtp, "mtp.0.") == _count(mtp, "mtp.") == 1575
    assert [_count(dspark, f"mtp.{stage}.") for stage in range(3)] == [1568, 1565, 1572]
    shards = dealt(mtp, 48)
    assert len(shards) == 48
    assert max(sum(one.nbytes for one in shard) for shard in shards) < 4.4e9


def _count(tensors: list[Stored], prefix: str) -> int:
    return sum(tensor.name.startswith(prefix) for tensor in tensors)


@pytest.mark.usefixtures("_tiny")
@pytest.mark.parametrize("draft", ["none", "mtp", "dspark"])
def test_ranks_load_it_and_pass_over_all_stages_of_a_draft_head(
    tmp_path: Path, draft: DraftHead
) -> None:
    total = write_checkpoint(tmp_path, draft=draft, **SIZES)
    halves = [network_of(rank) for rank in (0, 1)]

    for half in halves:
        load_weights(half, tmp_path, progress=False)

    index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["metadata"]["total_size"] == total
    drafted = any(name.startswith("mtp.") for name in index["weight_map"])
    assert drafted == (draft != "none")
    for half in halves:
        for name, target in half.named_weights():
            kept = target.target if isinstance(target, Part) else target
            assert isinstance(kept, torch.Tensor)
            assert torch.isfinite(kept).all(), name
            assert kept.count_nonzero() > 0, name
    drop_from_memory(tmp_path)
    size, _ = plain_read(tmp_path)
    assert (size == total) == (draft == "none")
    ranges = [one for path in shards_of(tmp_path) for one in loaded_ranges(path)]
    assert size == sum(end - start for start, end in ranges)


@pytest.mark.usefixtures("_tiny")
def test_a_tensor_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ("layers.1.attn.wq_b.scale", "layers.3.ffn.experts.4.w2.weight", "mtp.1.norm.weight")

    def fewer(config: object, draft: DraftHead) -> list[Stored]:
        found = stored_tensors(parse_config(CONFIG), draft)
        return [tensor for tensor in found if tensor.name not in missing]

    monkeypatch.setattr(files, "stored_tensors", fewer)
    write_checkpoint(tmp_path, draft="dspark", **SIZES)

    with pytest.raises(WeightError) as raised:
        load_weights(network_of(0), tmp_path, progress=False)

    assert "layers.3.ffn.experts.4.w2.weight is missing" in str(raised.value)
    assert "layers.1.attn.wq_b.weight is F8_E4M3 and has no scale" in str(raised.value)
    assert "mtp." not in str(raised.value)


@pytest.mark.parametrize("arrange", [True, False])
def test_a_rank_tells_what_its_share_took(
    stand_in: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arrange: bool,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))

    told = load_share(stand_in, Shares(), torch.device("cpu"), arrange=arrange)

    assert json.loads(capsys.readouterr().out) == {"ready": True}
    assert told.keys() == {"seconds", "kept", "beyond"}
    assert told["seconds"] > 0
    assert told["beyond"] >= 0


def test_a_full_checkpoint_is_what_is_written_by_default() -> None:
    options = parse(["write", "folder"])

    assert (options.layers, options.experts, options.shards, options.draft) == (43, 256, 48, "mtp")
    assert parse(["read", "folder", "--ranks", "4", "--device", "cuda"]).ranks == 4
