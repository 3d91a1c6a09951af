"""Two families in one file: layers that attend everything, alone or in turn with windowed ones.

Neither has a state, and the first has no windows. They have what `layers.models.contract` asks for
and nothing else: where the runtime takes for granted what only V4 has, they fail here.
`python -m tests.testing.toy_family` serves them.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import runtime.scheduler.process
from jit_kernels.rope import rope, rotations
from layers.blocks.norm import RmsNorm
from layers.blocks.rope import frequencies
from layers.linear.contract import Named
from layers.linear.plain import PlainLinear
from layers.models.contract import ModelFacts, Settings
from layers.models.json_fields import positive_int, require
from layers.models.registry import FAMILIES
from layers.models.unit_views import UnitView, UnitViews
from layers.parallel.ranks import Ranks
from layers.parallel.shares import UnevenShares
from layers.steps.forward_batch import FedTokens, ForwardBatch, Forwarded, finite_rows
from layers.steps.step_tokens import StepTokens
from mem_cache.spec import CacheSpec, Paged, PoolSizes, Window
from runtime.config import ServerConfig
from runtime.ipc import Addresses
from runtime.launch import serve
from tests.testing.stand_in.tokenizer import write_tokenizer

MODEL_TYPE = "toy"
CONFIG = {"model_type": MODEL_TYPE, "vocab_size": 512, "hidden_size": 32, "num_hidden_layers": 2}
# Layers 0 and 2 attend a window of 12 tokens.
SLIDING = CONFIG | {"num_hidden_layers": 4, "sliding_window": 12}
HEADS, KEY_HEADS, HEAD_DIM, INNER = 4, 2, 16, 48
EPS, THETA, CONTEXT = 1e-6, 10000.0, 4096


def register() -> None:
    """Have the registry know the family, in this process."""
    FAMILIES[MODEL_TYPE] = "tests.testing.toy_family:read"


def run_scheduler(config: ServerConfig, addresses: Addresses) -> None:
    """Serve, as `runtime.scheduler.process.run_scheduler` does."""
    register()
    runtime.scheduler.process.run_scheduler(config, addresses)


def read(raw: dict[str, Any], generation: dict[str, Any], override: dict[str, Any]) -> "Toy":
    """Return the model of parsed files. Raises ConfigFault."""
    raw = raw | override
    require(raw, "num_hidden_layers", (2, 4))
    layers, window = positive_int(raw, "num_hidden_layers"), raw.get("sliding_window", 0)
    windows = tuple(window if window and i % 2 == 0 else 0 for i in range(layers))
    end = generation.get("eos_token_id", 1)
    vocab, width = positive_int(raw, "vocab_size"), positive_int(raw, "hidden_size")
    return Toy(vocab, width, (end,), windows)


@dataclass(frozen=True, slots=True)
class Toy:
    """A `Model`.

    windows    of each layer, the tokens that it attends; 0: all
    page_size  tokens in a full page, of which an SWA page has a quarter
    """

    vocab: int
    width: int
    end_ids: tuple[int, ...]
    windows: tuple[int, ...] = (0, 0)
    page_size: int = 256

    @property
    def facts(self) -> ModelFacts:
        layers = len(self.windows)
        names = ("ToyForCausalLM",)
        return ModelFacts(MODEL_TYPE, names, layers, self.width, self.vocab, CONTEXT, self.end_ids)

    @property
    def cache(self) -> CacheSpec:
        """What the cache has to hold: pages of layers that attend all, windows of the others."""
        token = 2 * KEY_HEADS * HEAD_DIM * 4
        sliding = [window for window in self.windows if window]
        swa_page = self.page_size // 4
        groups = [Window(f"swa {w}", w, swa_page * token) for w in sliding]
        return CacheSpec(
            "fp32",
            paged=(Paged("kv", self.page_size * token * (len(self.windows) - len(sliding))),),
            windows=tuple(groups),
            # Each such layer sees window - 1 tokens before; the last one's window is needed whole.
            replay_tokens=sum(window - 1 for window in sliding) + bool(sliding),
            page_size=self.page_size,
            swa_page_size=swa_page,
        )

    @property
    def wheels(self) -> Sequence[str]:
        return ()

    def check_cuda(self) -> None:
        """Let a CUDA device be asked for: torch knows all ops."""

    def smaller(self, settings: Settings) -> str | None:
        """Return no advice."""

    def own_rows_bytes(self, device: str, settings: Settings, world: int) -> int:
        """Refuse, as it does any ranks."""
        raise UnevenShares("this family is not shared")

    def build(
        self, device: torch.device, settings: Settings, ranks: Ranks | None = None
    ) -> "ToyNetwork":
        assert settings.experts == "auto"
        if ranks is not None and ranks.shares.world > 1:
            raise UnevenShares("this family is not shared")
        return ToyNetwork(self, device)


class ToyPools:
    """Keys and values of tokens, all NaN until they are written.

    pages  [L, full_pages + 1, page, 2, KEY_HEADS, HEAD_DIM]    of layers that attend all
    swa    [L, swa_pages + 1, swa_page, 2, KEY_HEADS, HEAD_DIM]    of layers with a window
    """

    def __init__(self, model: Toy, sizes: PoolSizes, device: torch.device) -> None:
        tail = (2, KEY_HEADS, HEAD_DIM)
        layers, tree, self.sizes = len(model.windows), model.cache.tree, sizes
        pages = (layers, sizes.full_pages + 1, tree.page_size, *tail)
        swa = (layers, sizes.swa_pages + 1, tree.swa_page_size, *tail)
        self.pages = torch.full(pages, torch.nan, device=device)
        self.swa = torch.full(swa, torch.nan, device=device)

    @property
    def bytes(self) -> int:
        return self.pages.nbytes + self.swa.nbytes

    def tensors(self) -> Mapping[str, Tensor]:
        return {"pages": self.pages, "swa": self.swa}

    def copy_full_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.pages[:, destination] = self.pages[:, source]

    def copy_swa_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.swa[:, destination] = self.swa[:, source]

    def copy_states(self, copies: Sequence[tuple[int, int, int]]) -> None:
        raise AssertionError(f"there is no state: {copies}")

    def unit_views(self) -> UnitViews:
        return UnitViews([UnitView.of(self.pages)], [UnitView.of(self.swa)])


class ToyLayer:
    """Attention over all tokens before, then a gated product; each with a norm and a residual."""

    def __init__(self, width: int, device: torch.device) -> None:
        def linear(inputs: int, **parts: int) -> PlainLinear:
            return PlainLinear(inputs, parts, dtype=torch.float32, device=device)

        keys = KEY_HEADS * HEAD_DIM
        self.attention_norm = RmsNorm(width, eps=EPS, name="attn_norm", device=device)
        self.qkv = linear(width, wq=HEADS * HEAD_DIM, wk=keys, wv=keys)
        self.wo = linear(HEADS * HEAD_DIM, wo=width)
        self.mlp_norm = RmsNorm(width, eps=EPS, name="ffn_norm", device=device)
        self.gate_up = linear(width, w1=INNER, w3=INNER)
        self.down = linear(INNER, w2=width)

    def parts(self) -> Sequence[RmsNorm | PlainLinear]:
        return (
            *(self.attention_norm, self.qkv, self.wo),
            *(self.mlp_norm, self.gate_up, self.down),
        )


class ToyNetwork:
    """A `Network`."""

    def __init__(self, model: Toy, device: torch.device) -> None:
        self._device, self._model, self._tree = device, model, model.cache.tree
        vocab, width = model.vocab, model.width
        self._embedding = torch.zeros((vocab, width), device=device)
        self._layers = [ToyLayer(width, device) for _ in model.windows]
        self._norm = RmsNorm(width, eps=EPS, name="norm", device=device)
        self._head = PlainLinear(width, {"head": vocab}, dtype=torch.float32, device=device)
        self._angles = frequencies(HEAD_DIM, THETA, None).repeat_interleave(2).to(device)

    @property
    def cache(self) -> CacheSpec:
        return self._model.cache

    @property
    def facts(self) -> Mapping[str, str]:
        return {"dtype": "float32", "record_format": "fp32"}

    def named_weights(self) -> Named:
        yield "embed.weight", self._embedding
        for i, layer in enumerate(self._layers):
            for part in layer.parts():
                yield from part.named_weights(f"layers.{i}.")
        yield from self._norm.named_weights("")
        yield from self._head.named_weights("")

    def pools(self, sizes: PoolSizes) -> ToyPools:
        return ToyPools(self._model, sizes, self._device)

    @torch.inference_mode()
    def prefill(
        self,
        batch: ForwardBatch,
        pools: ToyPools,
        *,
        fed: FedTokens | None = None,
        halfway: Callable[[], None] | None = None,
        counts: Sequence[int] | None = None,
    ) -> Forwarded:
        assert counts is None
        if fed is not None:
            batch.input_ids.index_copy_(0, fed.at, fed.ids)
        tokens = StepTokens(batch)
        turns = rotations(tokens.position, self._angles)
        x = self._embedding.index_select(0, batch.input_ids)
        for i, layer in enumerate(self._layers):
            x = x + self._attended(i, x, tokens, turns, pools)
            hidden = layer.gate_up(layer.gate_up.rows(x, layer.mlp_norm))
            x = x + layer.down(layer.down.gated(hidden, limit=1e9))
            if halfway is not None and i == 0:
                halfway()
        finite = finite_rows(x.isfinite().all(1), tokens.row, batch.chunk_len)
        last = x.index_select(0, batch.logit_tokens)
        return Forwarded(self._head(self._head.rows(last, self._norm)), finite)

    def _attended(
        self, nth: int, x: Tensor, tokens: StepTokens, turns: Tensor, pools: ToyPools
    ) -> Tensor:
        layer, window = self._layers[nth], self._model.windows[nth]
        keys = KEY_HEADS * HEAD_DIM
        made = layer.qkv(layer.qkv.rows(x, layer.attention_norm))
        q, k, v = made.split([HEADS * HEAD_DIM, keys, keys], 1)
        q = rope(q.reshape(-1, HEADS, HEAD_DIM).contiguous(), turns)
        k = rope(k.reshape(-1, KEY_HEADS, HEAD_DIM).contiguous(), turns)
        both = torch.stack((k, v.reshape_as(k)), 1)
        out = torch.empty_like(q)
        read = self._windows if window else self._all_pages
        for t, seen in enumerate(read(nth, both, tokens, pools)):
            held = seen.repeat_interleave(HEADS // KEY_HEADS, 2)
            scores = torch.einsum("hd,shd->hs", q[t], held[:, 0]) * HEAD_DIM**-0.5
            out[t] = torch.einsum("hs,shd->hd", scores.softmax(1), held[:, 1])
        return layer.wo(layer.wo.rows(out.flatten(1)))

    def _all_pages(
        self, nth: int, both: Tensor, tokens: StepTokens, pools: ToyPools
    ) -> Iterator[Tensor]:
        """Write each row's keys and values from `write_from` on; yield what each token attends."""
        batch, size, pages = tokens.batch, self._tree.page_size, pools.pages[nth]
        page = batch.page_table[tokens.row, tokens.position // size].long()
        written = tokens.writes_records
        pages[page[written], tokens.position[written] % size] = both[written]
        for row, position in zip(tokens.row.tolist(), tokens.position.tolist(), strict=True):
            table = batch.page_table[row, : position // size + 1].long()
            yield pages[table].flatten(0, 1)[: position + 1]

    def _windows(
        self, nth: int, both: Tensor, tokens: StepTokens, pools: ToyPools
    ) -> Iterator[Tensor]:
        """Yield what each token attends, then write what the step saves."""
        batch, window = tokens.batch, self._model.windows[nth]
        known: list[tuple[int, Tensor]] = []
        for row in range(tokens.rows):
            start, first = int(batch.chunk_start[row]), int(batch.window_from[row])
            oldest = min(start, max(0, first, start - window + 1))
            places = self._places(batch.window[row], range(oldest, start))
            chunk = both[tokens.row == row]
            known.append((oldest, torch.cat((pools.swa[nth][places], chunk))))
        for row, position in zip(tokens.row.tolist(), tokens.position.tolist(), strict=True):
            oldest, keys = known[row]
            yield keys[max(0, position - window + 1 - oldest) : position + 1 - oldest]
        for save, row in enumerate(batch.save_row.tolist()):
            (oldest, keys), end = known[row], int(batch.save_position[save])
            kept = range(max(oldest, end - window), end)
            places = self._places(batch.save_window[save], kept)
            pools.swa[nth][places] = keys[kept.start - oldest : kept.stop - oldest]

    def _places(self, window: Tensor, positions: range) -> tuple[Tensor, Tensor]:
        """Return the SWA pages of positions, and where in these they are."""
        size, at = self._tree.swa_page_size, torch.tensor(positions, dtype=torch.int64)
        return window[at // size % self._tree.window_pages].long(), at % size


def write_folder(folder: Path, config: dict[str, Any] = CONFIG) -> Path:
    """Write a checkpoint folder without weights, for --load-format dummy."""
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_tokenizer(folder, max_tokens=CONTEXT)
    return folder


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1:], scheduler_main="tests.testing.toy_family:run_scheduler"))
