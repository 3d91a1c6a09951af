"""In which form a device keeps routed experts, and how many bytes that takes."""

from typing import assert_never

from layers.experts.contract import ExpertForm
from layers.models.deepseek_v4.config import ConfigFault, ModelConfig

__all__ = ["expert_bytes", "expert_form", "smaller_form"]

_GIB = 1 << 30
# A byte's share for each number: codes, and scales of 32 inputs or of 128 x 128 blocks.
_FP4 = 0.5 + 1 / 32
_FP8 = 1 + 4 / (128 * 128)


def expert_form(
    config: ModelConfig, wanted: ExpertForm | None = None, *, room: int | None = None
) -> ExpertForm:
    """Return the form to keep: `wanted`, or the one that suits the file and the memory.

    room  bytes that experts may take; decides whether fp4 experts are kept as fp8, too, which
          spares every prefill step their expansion. None: no limit
    Raises ConfigFault when fp4 is wanted of a file with fp8 experts.
    """
    if wanted in ("fp4", "both") and config.expert_dtype == "fp8":
        raise ConfigFault(
            f"--experts {wanted}: the file holds its experts as fp8, of which fp4 would lose "
            "most; use --experts fp8"
        )
    if wanted is not None:
        return wanted
    if config.expert_dtype != "fp4":
        return "fp8"
    return "both" if room is None or expert_bytes(config, "both") <= room else "fp4"


def smaller_form(config: ModelConfig, form: ExpertForm) -> str | None:
    """Return the advice that would make experts smaller, None where there is none."""
    now, then = expert_bytes(config, form) / _GIB, expert_bytes(config, "fp4") / _GIB
    if then >= now or config.expert_dtype != "fp4":
        return None
    return f"give --experts fp4, which needs {then:.2f} GiB for experts instead of {now:.2f}"


def expert_bytes(config: ModelConfig, form: ExpertForm) -> int:
    """Return the bytes of all layers' routed experts, and of the workspace that "fp4" needs."""
    layer = 3 * config.n_routed_experts * config.hidden_size * config.moe_intermediate_size
    layers = config.num_hidden_layers
    match form:
        case "fp4":
            return round(layer * (layers * _FP4 + _FP8))
        case "fp8":
            return round(layer * layers * _FP8)
        case "both":
            return round(layer * layers * (_FP4 + _FP8))
        case _:
            assert_never(form)
