"""One layer's attention against its formula."""

import pytest
import torch

from layers.models.deepseek_v4.reference_attention import Attention
from layers.parallel.shares import Shards
from mem_cache.spec import RecordFormat
from tests.testing import attention_formula
from tests.testing.compare import Bounds, assert_close
from tests.testing.direct import CPU
from tests.testing.tiny_model import cold_batch, one_layer, randomise


@pytest.mark.parametrize(
    ("ratio", "length"), [(0, 1), (0, 150), (4, 3), (4, 150), (128, 127), (128, 300)]
)
def test_a_cold_prompt_gives_the_formula(ratio: int, length: int) -> None:
    config, pools, plan = one_layer(ratio, cold_batch(length))
    attention = Attention(config, 0, shards=Shards(), dtype=torch.float32, device=CPU)
    weights = randomise(attention.named_weights(""))
    x = torch.randn(length, config.hidden_size)

    got = attention(x, plan, pools)

    doubles = {name: weight.double() for name, weight in weights.items()}
    want = attention_formula.attention(x.double(), doubles, config, ratio)
    assert_close(got, want.float(), Bounds(atol=1e-4))


@pytest.mark.parametrize(("record_format", "bound"), [("bf16", 0.02), ("fp8", 0.08)])
def test_low_precision_records_stay_near_the_formula(
    record_format: RecordFormat, bound: float
) -> None:
    # Below 4 * index_topk tokens every block is attended: no choice can flip.
    config, pools, plan = one_layer(4, cold_batch(90), record_format)
    attention = Attention(config, 0, shards=Shards(), dtype=torch.float32, device=CPU)
    weights = randomise(attention.named_weights(""))
    x = torch.randn(90, config.hidden_size)

    got = attention(x, plan, pools)

    doubles = {name: weight.double() for name, weight in weights.items()}
    want = attention_formula.attention(x.double(), doubles, config, 4)
    assert_close(got, want.float(), Bounds(atol=10.0, rms=bound))
