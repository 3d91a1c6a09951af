"""The quantised network as `Direct` drives it: chunks as prefill, steps of one token as decode."""

from pathlib import Path

import torch
from torch import Tensor

from layers.experts.contract import ExpertForm
from layers.models.deepseek_v4.config import load_config
from layers.models.deepseek_v4.expert_form import expert_form
from layers.models.deepseek_v4.model import QuantisedV4
from layers.models.deepseek_v4.pools import KvPools
from layers.steps.decode_rows import DecodeRows
from layers.steps.forward_batch import ForwardBatch, Forwarded
from layers.weights.loading import load_weights

__all__ = ["FusedModel", "load_fused"]

# Rows that pad a decode batch: whatever they do must change nothing.
PADDING = 3
SPARE_PAGES = 2


class FusedModel:
    """A quantised network behind the call of the reference.

    decodes  run steps whose chunks are single tokens, saved in place, as decode steps
    """

    def __init__(self, network: QuantisedV4, *, decodes: bool = True) -> None:
        self.network, self.config = network, network.config
        self.decodes = decodes
        self.decoded = 0

    def prefill(self, batch: ForwardBatch, pools: KvPools) -> Forwarded | Tensor:
        """Return the logits that the batch asks for."""
        rows = batch.chunk_start.shape[0]
        alone = batch.input_ids.shape[0] == rows == batch.save_row.shape[0]
        if self.decodes and alone and bool((batch.chunk_start > 0).all()):
            self.decoded += 1
            return self.network.decode(decode_rows(batch), pools)[batch.logit_tokens]
        return self.network.prefill(batch, pools)


def decode_rows(batch: ForwardBatch) -> DecodeRows:
    """Return the inputs of a decode step with some rows and page columns more than it needs."""
    rows, pages = batch.page_table.shape
    inputs = DecodeRows.empty(
        rows + PADDING,
        pages=pages + SPARE_PAGES,
        window_pages=batch.window.shape[1],
        device=batch.input_ids.device,
    )
    inputs.input_ids[:rows] = batch.input_ids
    inputs.position[:rows] = batch.chunk_start
    inputs.page_table[:rows, :pages] = batch.page_table
    inputs.window[:rows] = batch.save_window
    inputs.ring[:rows] = batch.ring
    return inputs


def load_fused(folder: Path, device: torch.device, form: ExpertForm | None = None) -> QuantisedV4:
    """Return the quantised network of a checkpoint, filled."""
    config = load_config(folder)
    network = QuantisedV4(config, device, experts=expert_form(config, form))
    load_weights(network, folder, progress=False)
    return network
