"""Kinds of layers: what each keeps, and that both make the same of the same numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from layers.experts.contract import ExpertForm, ExpertSizes
from layers.kinds import Bf16Kinds, DecoderKinds, Kinds, PlainKinds, QuantisedKinds
from layers.linear.contract import GroupedLinear, Linear, Named
from layers.parallel.shares import whole
from layers.weights.weight_target import Fp8Target
from tests.testing.compare import Bounds, assert_close

CPU = torch.device("cpu")
SIZES = ExpertSizes(whole(4), 256, whole(128), chosen=2, limit=1.0)
# Rows and weights are rounded to e4m3, each off by 2.6 %.
ROUNDED, EXACT = Bounds(cosine=0.998, rms=0.06, atol=torch.inf), Bounds(rms=0.01, atol=torch.inf)

# Makers of `Kinds` -> what activations may lose.
LINEAR: dict[str, tuple[Callable[[Kinds], Linear], Bounds]] = {
    "projection": (lambda kinds: kinds.projection(256, {"a": 128, "b": 256}), ROUNDED),
    "exact": (lambda kinds: kinds.exact(256, {"a": 24, "b": 40}), EXACT),
    "head": (lambda kinds: kinds.head(256, {"a": 97}), EXACT),
}


def shapes(named: Named) -> dict[str, tuple[int, ...]]:
    """Return the shapes of weights by name."""
    return {name: tuple(target.shape) for name, target in named}


def put(named: Named, numbers: dict[str, Tensor]) -> None:
    """Give weights these numbers."""
    for name, target in named:
        if isinstance(target, Tensor):
            target.copy_(numbers[name])
        else:
            assert isinstance(target, Fp8Target)
            target.put_plain(numbers[name])


def both(device: torch.device) -> tuple[PlainKinds, QuantisedKinds]:
    """Return plain kinds in float32, and quantised ones."""
    return PlainKinds(device, torch.float32), QuantisedKinds(device, experts="fp8")


def numbers_for(made: Linear | GroupedLinear) -> dict[str, Tensor]:
    """Return random weights that bfloat16 holds."""
    found = shapes(made.named_weights("x."))
    return {name: torch.randn(shape).bfloat16().float() / 16 for name, shape in found.items()}


@pytest.mark.parametrize("maker", LINEAR)
def test_both_kinds_of_a_layer_give_the_same(maker: str, device: torch.device) -> None:
    make, bounds = LINEAR[maker]
    plain, other = (make(kinds) for kinds in both(device))
    numbers = numbers_for(plain)
    assert shapes(other.named_weights("x.")) == shapes(plain.named_weights("x."))
    for made in (plain, other):
        put(made.named_weights("x."), numbers)
    x = torch.randn(5, 256).bfloat16()

    got, want = other(other.rows(x)), plain(plain.rows(x.float()))

    assert want.dtype == torch.float32
    assert got.dtype == (torch.bfloat16 if maker == "projection" else torch.float32)
    assert_close(got.float(), want, bounds)


def test_both_kinds_of_a_grouped_layer_give_the_same(device: torch.device) -> None:
    plain, other = (kinds.grouped(2, 128, 512, name="wo_a") for kinds in both(device))
    numbers = numbers_for(plain)
    for made in (plain, other):
        put(made.named_weights("x."), numbers)
    heads, angle = torch.randn(5, 2, 512).bfloat16(), torch.randn(5, 64)
    rotation = torch.stack((angle.cos(), torch.zeros(5, 64)), 1)

    got, want = other(heads.clone(), rotation), plain(heads.float(), rotation)

    assert shapes(other.named_weights("x.")) == shapes(plain.named_weights("x."))
    assert_close(got.float(), want, ROUNDED)


def test_gates_and_compressors_of_plain_kinds_are_float32() -> None:
    kinds = PlainKinds(CPU, torch.bfloat16)

    dtypes = {
        maker: {w.dtype for _, w in make(kinds).named_weights("") if isinstance(w, Tensor)}
        for maker, (make, _) in LINEAR.items()
    }

    assert dtypes["exact"] == {torch.float32}
    assert dtypes["projection"] == dtypes["head"] == {torch.bfloat16}


@pytest.mark.parametrize("form", ["fp4", "fp8", "both"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_experts_are_kept_in_the_form_asked_for(form: ExpertForm, deterministic: bool) -> None:
    kinds = QuantisedKinds(CPU, experts=form, deterministic=deterministic)

    made = kinds.routed(SIZES)

    one = deterministic and form == "both"
    assert kinds.form == ("fp4" if one else form)
    assert (made.fp4 is None) == (form == "fp8")
    # As fp8 there are weights, or the workspace that many rows of fp4 are expanded into.
    assert (made.fp8 is None) == (deterministic and form != "fp8")
    plain = PlainKinds(CPU, torch.float32).routed(SIZES)
    assert shapes(made.named_weights("x.")) == shapes(plain.named_weights("x."))


def test_layers_that_keep_fp4_alone_share_a_workspace() -> None:
    fp4, fp8 = (QuantisedKinds(CPU, experts=form) for form in ("fp4", "fp8"))

    one, other = fp4.routed(SIZES), fp4.routed(SIZES)
    mine, yours = fp8.routed(SIZES), fp8.routed(SIZES)

    assert one.fp8 is not None
    assert one.fp8 is other.fp8
    assert one.fp4 is not other.fp4
    assert mine.fp8 is not yours.fp8


@pytest.mark.parametrize("made", [PlainKinds(CPU, torch.float32), Bf16Kinds(CPU)])
def test_a_tied_head_multiplies_by_the_weight_that_is_there(made: DecoderKinds) -> None:
    weight = torch.randn(24, 64).to(made.stored)
    head = made.head(64, {"lm_head": 24}, weight=weight)
    x = torch.randn(3, 64).to(made.dtype)
    weight[5] = 2.0

    got = head(head.rows(x))

    assert_close(got, x.float() @ weight.float().T, EXACT)


def test_bfloat16_experts_round_what_plain_ones_do_not() -> None:
    sizes = ExpertSizes(whole(4), 64, whole(32), chosen=2, limit=torch.inf)
    names = ("gate_proj", "up_proj", "down_proj")
    plain, other = (
        kinds.routed(sizes, names) for kinds in (PlainKinds(CPU, torch.float32), Bf16Kinds(CPU))
    )
    found = shapes(plain.named_weights("x."))
    numbers = {name: torch.randn(shape).bfloat16().float() / 8 for name, shape in found.items()}
    for made in (plain, other):
        put(made.named_weights("x."), numbers)
    x, experts = torch.randn(5, 64).bfloat16(), torch.tensor([[1, 3]] * 5)

    got, want = (
        made.alone(rows, experts, torch.rand(5, 2).fill_(0.5))
        for made, rows in ((other, x), (plain, x.float()))
    )

    assert "x.experts.3.down_proj.weight" in found
    assert_close(got, want, Bounds(rms=0.02, atol=torch.inf))
    assert float((got - want).abs().max()) > 0
