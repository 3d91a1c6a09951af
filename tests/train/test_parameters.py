"""First values."""

import torch

from layers.models.deepseek_v4.config import parse_config
from tests.testing.recall_rows import small_config
from tests.train.geometry import default_config
from tests.train.parameters import first_parameters, split_parameters

CONFIG = parse_config(small_config())


def test_the_same_seed_gives_the_same_numbers() -> None:
    one, two, other = (first_parameters(CONFIG, seed) for seed in (0, 0, 1))

    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["embed.weight"], other["embed.weight"])


def test_routing_tables_give_distinct_experts_evenly() -> None:
    config = parse_config(default_config())
    table = first_parameters(config, 0)["layers.0.ffn.gate.tid2eid"]

    assert bool((table[:, 0] != table[:, 1]).all())
    counts = torch.bincount(table.flatten(), minlength=config.n_routed_experts)
    assert int(counts.max() - counts.min()) <= 8


def test_a_fresh_record_is_made_of_the_windows_keys() -> None:
    named = first_parameters(CONFIG, 0)

    for layer, copies in ((1, 1), (2, 2)):
        window = named[f"layers.{layer}.attn.wkv.weight"]
        compressed = named[f"layers.{layer}.attn.compressor.wkv.weight"]
        assert torch.equal(compressed, window.repeat(copies, 1))
    gate = named["layers.2.attn.compressor.wgate.weight"]
    assert float(gate.std()) < 0.2 * CONFIG.hidden_size**-0.5


def test_tables_and_router_biases_are_not_trained() -> None:
    trained, fixed = split_parameters(first_parameters(CONFIG, 0))

    assert set(fixed) == {
        "layers.0.ffn.gate.tid2eid",
        "layers.1.ffn.gate.bias",
        "layers.2.ffn.gate.bias",
    }
    assert all(tensor.is_floating_point() for tensor in trained.values())
