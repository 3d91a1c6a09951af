"""Rope settings in both spellings."""

import math
from typing import Any

import pytest

from layers.models.json_fields import ConfigFault
from layers.models.rope_fields import RopeFields, read_rope
from layers.models.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
CASES: list[tuple[str, dict[str, Any], RopeFields]] = [
    ("default", {}, RopeFields(5e5)),
    ("linear", {"factor": 3}, RopeFields(5e5, LinearScaling(3.0))),
    ("llama3", LLAMA3, RopeFields(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192))),
    (
        "yarn",
        YARN,
        RopeFields(5e5, YarnScaling(4.0, 32.0, 1.0, 32768), 0.1 * math.log(4.0) + 1.0),
    ),
    (
        "yarn",
        {**YARN, "beta_fast": 16, "truncate": False, "attention_factor": 1.5},
        RopeFields(5e5, YarnScaling(4.0, 16.0, 1.0, 32768, truncate=False), 1.5),
    ),
]


@pytest.mark.parametrize(("kind", "fields", "want"), CASES)
def test_both_spellings_say_the_same(kind: str, fields: dict[str, Any], want: RopeFields) -> None:
    for name in ("type", "rope_type"):
        assert read_rope({"rope_theta": 5e5, "rope_scaling": {name: kind, **fields}}) == want
    assert read_rope({"rope_parameters": {"rope_type": kind, "rope_theta": 5e5, **fields}}) == want


def test_nothing_said_is_plain_rope() -> None:
    assert read_rope({}) == RopeFields(10000.0)
    assert read_rope({"rope_theta": 1e6, "rope_scaling": None}) == RopeFields(1e6)


def test_scaling_is_from_the_models_context_where_no_other_is_said() -> None:
    found = read_rope(
        {"max_position_embeddings": 512, "rope_scaling": {"type": "yarn", "factor": 2.0}}
    )

    assert found.scaling == YarnScaling(2.0, 32.0, 1.0, 512)


def test_magnitudes_of_yarn_are_of_cosines_and_for_deepseek_of_logits() -> None:
    raw = {"rope_scaling": {"type": "yarn", **YARN, "mscale": 0.5, "mscale_all_dim": 2.0}}
    half, twice = (0.1 * share * math.log(4.0) + 1.0 for share in (0.5, 2.0))

    for mscale, logits in ((False, 1.0), (True, twice**2)):
        found = read_rope(raw, mscale=mscale)
        assert (found.attention_factor, found.logit_factor) == (half / twice, logits)
    del raw["rope_scaling"]["mscale_all_dim"]
    assert read_rope(raw).attention_factor == 0.1 * math.log(4.0) + 1.0
    with pytest.raises(ConfigFault, match="mscale_all_dim is missing"):
        read_rope(raw, mscale=True)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_scaling.rope_type must be"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type must be"),
        ({"rope_parameters": {"full_attention": {}, "rope_type": []}}, "rope_type must be"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": 2}}, "original_max_position_embeddings"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 4}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1"),
        ({"rope_theta": 1}, "rope_theta must be above 1"),
        ({"rope_scaling": "yarn"}, "rope_scaling must be a JSON object"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigFault, match=message):
        read_rope(raw)


def test_mscale_divides_cosines_and_multiplies_logits_where_a_family_has_it() -> None:
    fields = {"type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.707}

    found = read_rope({"rope_scaling": fields}, mscale=True)

    whole = 0.0707 * math.log(4.0) + 1.0
    assert found.attention_factor == pytest.approx((0.1 * math.log(4.0) + 1.0) / whole)
    assert found.logit_factor == pytest.approx(whole**2)
    plain = read_rope({"rope_scaling": {"type": "yarn", **YARN}}, mscale=True)
    assert plain == read_rope({"rope_scaling": {"type": "yarn", **YARN}})
    with pytest.raises(ConfigFault, match="mscale_all_dim is missing"):
        read_rope({"rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0}}, mscale=True)
