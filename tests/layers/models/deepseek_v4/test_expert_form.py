"""Which form of experts a device keeps."""

from dataclasses import replace

import pytest
import torch

from layers.experts.contract import ExpertForm, ExpertSizes
from layers.experts.quantised import QuantisedExperts, expert_workspace
from layers.models.deepseek_v4.config import ConfigFault
from layers.models.deepseek_v4.expert_form import expert_bytes, expert_form, smaller_form
from layers.parallel.shares import whole
from tests.testing.tiny_model import CONFIG

TINY = replace(CONFIG, hidden_size=256, moe_intermediate_size=128, n_routed_experts=4)
FP4, FP8 = replace(TINY, expert_dtype="fp4"), replace(TINY, expert_dtype="fp8")


def test_the_file_and_the_memory_decide() -> None:
    assert expert_form(TINY) == "fp8"
    assert expert_form(FP8) == "fp8"
    assert expert_form(FP4) == "both"
    assert expert_form(FP4, room=expert_bytes(FP4, "both")) == "both"
    assert expert_form(FP4, room=expert_bytes(FP4, "both") - 1) == "fp4"


@pytest.mark.parametrize("wanted", ["fp4", "fp8", "both"])
def test_what_is_wanted_is_taken_where_the_file_allows_it(wanted: ExpertForm) -> None:
    assert expert_form(FP4, wanted, room=0) == wanted
    assert expert_form(TINY, wanted, room=0) == wanted
    if wanted == "fp8":
        assert expert_form(FP8, wanted) == wanted
        return
    with pytest.raises(ConfigFault, match=f"--experts {wanted}: .* use --experts fp8"):
        expert_form(FP8, wanted)


@pytest.mark.parametrize("form", ["fp4", "fp8", "both"])
def test_bytes_are_those_of_the_storage(form: ExpertForm) -> None:
    cpu = torch.device("cpu")
    sizes = ExpertSizes(whole(4), 256, whole(128), chosen=2, limit=1.0)
    workspace = expert_workspace(sizes, cpu) if form == "fp4" else None
    layer = QuantisedExperts(sizes, device=cpu, form=form, workspace=workspace)
    held = [part for part in (layer.fp4, layer.fp8) if part is not None]

    total = sum(
        getattr(part, name).nbytes
        for part in held
        for name in ("gate_up", "gate_up_scales", "down", "down_scales")
    )

    assert total == expert_bytes(replace(TINY, num_hidden_layers=1), form)


def test_the_smaller_form_is_advised_where_it_is_one_and_the_file_has_it() -> None:
    advice = smaller_form(FP4, "both")

    assert advice is not None
    assert advice.startswith("give --experts fp4, which needs ")
    assert smaller_form(FP4, "fp4") is None
    assert smaller_form(FP8, "fp8") is None
    assert smaller_form(TINY, "fp8") is None
