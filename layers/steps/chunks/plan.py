"""Tables of a step of chunks: derived on the host, then moved to the device in one copy.

Whatever has a size that depends on what the batch says is derived here, before the device is asked
for anything: a step is launched while the one before it still runs.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from layers.models.deepseek_v4.pool_spec import PoolSpec
from layers.staging import stage_together
from layers.steps.forward_batch import ForwardBatch
from layers.steps.reference.attention_plan import window_saves
from layers.steps.reference.compression_plan import ring_saves
from layers.steps.step_tokens import StepTokens

__all__ = ["BlockPlan", "ChunkPlan", "KeyPages", "plan_chunks"]

# What the device is told of the batch as it is.
_TOLD = (
    *("input_ids", "logit_tokens", "chunk_start", "chunk_len", "window_from"),
    *("page_table", "window", "ring"),
)


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Blocks of one ratio: m that the chunks finish and must write, and those of all n rows.

    last     [m] int64   token that finishes a block
    slots    [m] int64   full-page slot of the block
    first    [m] int64   position of its first token
    source   [s] int64   into [n * ring entries of the rows' rings; T entries of the tokens]
    target   [s] int64   entry of the rings to write
    base     [n] int64   where each row's blocks begin in a list of the blocks of all rows
    count    blocks in that list
    columns  most blocks that a token sees
    """

    last: Tensor
    slots: Tensor
    first: Tensor
    source: Tensor
    target: Tensor
    base: Tensor
    count: int
    columns: int


@dataclass(frozen=True, slots=True)
class KeyPages:
    """Pages that hold the indexer keys of all rows, one row's after the other's.

    pages    [U] int32
    visible  [T] int64   blocks of 4 that each token sees
    start    [T] int32   where its row's block 0 is, counted in blocks of these pages
    end      [T] int32   start + visible
    """

    pages: Tensor
    visible: Tensor
    start: Tensor
    end: Tensor


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A step on the device of its pools: n rows, T tokens, k logits.

    position  [T] int64
    row       [T] int64
    kept      [s] int32   [n * (window - 1) keys before the chunks; T keys of the chunks] to save
    wanted    [s] int32   SWA slots to write them to
    blocks    ratio -> its blocks
    keys      None where no token sees more blocks of 4 than it attends
    Else as `ForwardBatch` says.
    """

    input_ids: Tensor
    logit_tokens: Tensor
    chunk_start: Tensor
    chunk_len: Tensor
    window_from: Tensor
    page_table: Tensor
    window: Tensor
    ring: Tensor
    position: Tensor
    row: Tensor
    kept: Tensor
    wanted: Tensor
    blocks: dict[int, BlockPlan]
    keys: KeyPages | None

    @property
    def rows(self) -> int:
        """Chunks in the step."""
        return self.chunk_start.shape[0]

    @property
    def count(self) -> int:
        """Tokens in the step."""
        return self.position.shape[0]

    @property
    def device(self) -> torch.device:
        """Where all tensors are."""
        return self.position.device


def plan_chunks(
    batch: ForwardBatch, spec: PoolSpec, *, live: int = 0, top_k: int, device: torch.device
) -> ChunkPlan:
    """Derive the tables of a step and launch their copy to `device`; the host does not wait.

    batch  in host memory; one that is elsewhere is brought there first, and that is waited for
    live   rings in the rows' form, PoolSizes.live_states
    top_k  blocks of 4 that a token attends at most
    """
    tokens = StepTokens(_on_host(batch), draft_tokens=spec.tree.draft_tokens)
    ends: list[int] = (tokens.batch.chunk_start + tokens.batch.chunk_len).tolist()
    ratios = sorted(set(spec.layer_ratios) - {0})
    groups = {"step": _step_tables(tokens, spec)}
    groups |= {f"{ratio}": _block_tables(tokens, spec, ratio, live) for ratio in ratios}
    if 4 in ratios and max(ends) // 4 > top_k:
        groups["keys"] = _key_tables(tokens, spec)
    there = _stage_groups(groups, device)
    blocks = {
        ratio: BlockPlan(
            **there[f"{ratio}"],
            count=sum(end // ratio for end in ends),
            columns=max(ends) // ratio,
        )
        for ratio in ratios
    }
    keys = KeyPages(**there["keys"]) if "keys" in there else None
    return ChunkPlan(**there["step"], blocks=blocks, keys=keys)


def _on_host(batch: ForwardBatch) -> ForwardBatch:
    if batch.input_ids.device.type == "cpu":
        return batch
    return ForwardBatch(**{f.name: getattr(batch, f.name).cpu() for f in fields(batch)})


def _step_tables(tokens: StepTokens, spec: PoolSpec) -> dict[str, Tensor]:
    saves = window_saves(tokens, spec.tree)
    tables: dict[str, Tensor] = {name: getattr(tokens.batch, name) for name in _TOLD}
    tables |= {"position": tokens.position, "row": tokens.row}
    tables["kept"], tables["wanted"] = saves.source.to(torch.int32), saves.target.to(torch.int32)
    return tables


def _block_tables(tokens: StepTokens, spec: PoolSpec, ratio: int, live: int) -> dict[str, Tensor]:
    last = tokens.finishing(ratio)
    saves = ring_saves(tokens, spec, ratio, live=live)
    each = (tokens.batch.chunk_start + tokens.batch.chunk_len) // ratio
    return {
        "last": last,
        "slots": tokens.page_slots(last, ratio, spec.tree.page_size),
        "first": tokens.position[last] - (ratio - 1),
        "source": saves.source,
        "target": saves.target,
        "base": each.cumsum(0) - each,
    }


def _key_tables(tokens: StepTokens, spec: PoolSpec) -> dict[str, Tensor]:
    batch, per_page = tokens.batch, spec.tree.page_size // 4
    blocks = (batch.chunk_start + batch.chunk_len) // 4
    used = (blocks + (per_page - 1)) // per_page
    column = torch.arange(batch.page_table.shape[1], device=tokens.device)
    pages = batch.page_table[column < used.unsqueeze(1)]
    start = ((used.cumsum(0) - used) * per_page)[tokens.row]
    visible = (tokens.position + 1) // 4
    return {
        "pages": pages,
        "visible": visible,
        "start": start.to(torch.int32),
        "end": (start + visible).to(torch.int32),
    }


def _stage_groups(
    groups: dict[str, dict[str, Tensor]], device: torch.device
) -> dict[str, dict[str, Tensor]]:
    """Return groups of tables on `device`, moved in one copy."""
    arrays = {
        f"{group}.{name}": table.numpy()
        for group, tables in groups.items()
        for name, table in tables.items()
    }
    there = stage_together(arrays, device)
    return {
        group: {name: there[f"{group}.{name}"] for name in tables}
        for group, tables in groups.items()
    }
