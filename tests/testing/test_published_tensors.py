"""The names and shapes of a checkpoint's tensors."""

from layers.models.deepseek_v4.config import parse_config
from tests.testing.published_tensors import tensor_shapes
from tests.train.geometry import default_config


def test_they_are_those_of_the_published_files() -> None:
    """A few of each kind, spelt out; all of them are held against reference files elsewhere."""
    shapes = tensor_shapes(parse_config(default_config()))

    assert shapes["embed.weight"] == shapes["head.weight"] == (2048, 256)
    assert shapes["layers.0.ffn.gate.tid2eid"] == (2048, 2)
    assert shapes["layers.3.ffn.gate.bias"] == (8,)
    assert shapes["layers.1.attn.compressor.ape"] == (128, 512)
    assert shapes["layers.2.attn.compressor.wkv.weight"] == (1024, 256)
    assert shapes["layers.2.attn.indexer.weights_proj.weight"] == (8, 256)
    assert shapes["layers.5.hc_attn_fn"] == (24, 1024)
    assert shapes["layers.4.ffn.experts.7.w2.weight"] == (256, 256)
    assert "layers.0.attn.compressor.ape" not in shapes
    assert "layers.1.attn.indexer.wq_b.weight" not in shapes
