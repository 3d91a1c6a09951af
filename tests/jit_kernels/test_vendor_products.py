"""Products that weights are noted for, and the vendors' calls that they make."""

from collections.abc import Callable, Sequence
from threading import Event

import pytest
import torch

import jit_kernels.registry as registry
import jit_kernels.vendor_products as vendor_products
from jit_kernels.bf16_linear import bf16_linear
from jit_kernels.bf16_linear import new_weight as bf16_weight
from jit_kernels.fp8_linear import fp8_linear, fp8_linear_grouped
from jit_kernels.fp8_linear import new_weight as fp8_weight
from jit_kernels.vendor_calls import VendorCalls
from jit_kernels.vendor_products import calls_of, compile_products, note, run_products
from tests.testing import fake_deep_gemm

CPU = torch.device("cpu")
BACKENDS = {
    "fp8_linear": "mixed",
    "fp8_linear_invariant": "deep_gemm",
    "fp8_linear_grouped": "mixed",
    "bf16_linear": "mixed",
    "grouped_moe": "deep_gemm",
}


@pytest.fixture(autouse=True)
def _nothing_noted(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """Let no weight of another test be noted, and vendors run what they run on a GPU."""
    monkeypatch.setattr("jit_kernels.vendor_products._NOTED", [])
    for op, backend in BACKENDS.items():
        monkeypatch.setitem(registry._CHOSEN, (op, "cuda"), backend)  # pyright: ignore[reportPrivateUsage]


def weight() -> torch.Tensor:
    """Return what stands for a weight."""
    return torch.zeros(1)


def test_a_weight_is_multiplied_by_as_long_as_it_lives() -> None:
    first, second = weight(), weight()
    note("fp8_linear", (128, 256), first)
    note("bf16_linear", (16, 256), second)

    both = calls_of([9, 1], CPU)
    del first
    one = calls_of([9, 1], CPU)
    del second

    linear = VendorCalls("fp8_linear", "mixed", (128, 256), (1, 9))
    assert both == [linear, VendorCalls("bf16_linear", "mixed", (16, 256), (1, 9))]
    assert one == both[1:]
    assert calls_of([9, 1], CPU) == []


def test_forgotten_weights_take_no_room() -> None:
    for _ in range(100):
        note("fp8_linear", (128, 256), weight())
    kept = weight()
    note("fp8_linear", (128, 256), kept)

    assert len(vendor_products._NOTED) == 1  # pyright: ignore[reportPrivateUsage]


def test_weights_of_one_kind_have_their_calls_once() -> None:
    held = [weight() for _ in range(4)]
    sizes = [(128, 256), (128, 256), (256, 128)]
    for one, size in zip(held, sizes, strict=False):
        note("fp8_linear", size, one)
    note("fp8_linear_invariant", (128, 256), held[3])

    found = calls_of([4], CPU)

    assert [(calls.sizes, calls.backend) for calls in found] == [
        ((128, 256), "mixed"),
        ((256, 128), "mixed"),
        ((128, 256), "deep_gemm"),
    ]


def test_weights_of_another_device_are_left_out() -> None:
    here, elsewhere = weight(), torch.zeros(1, device="meta")
    note("fp8_linear", (128, 256), here)
    note("fp8_linear", (256, 128), elsewhere)

    assert [calls.sizes for calls in calls_of([4], CPU)] == [(128, 256)]
    assert [calls.sizes for calls in calls_of([4], torch.device("meta"))] == [(256, 128)]


@pytest.mark.parametrize(
    ("op", "sizes", "most"),
    [
        ("fp8_linear", (1 << 16, 128), 1 << 12),
        ("bf16_linear", (129_280, 7168), 2076),
        ("fp8_linear_grouped", (16, 1 << 12, 128), 1 << 12),
    ],
)
def test_products_that_are_too_large_are_left_out(
    op: str, sizes: tuple[int, ...], most: int
) -> None:
    """Of all groups together."""
    kept = weight()
    note(op, sizes, kept)

    (calls,) = calls_of([most + 1, 8, most], CPU)

    assert calls.rows == (8, most)


def test_rows_of_experts_are_never_too_many() -> None:
    kept = weight()
    note("grouped_moe", (256, 7168, 2048, 8), kept)

    (calls,) = calls_of([1 << 20, 3], CPU)

    assert calls == VendorCalls("grouped_moe", "deep_gemm", (256, 7168, 2048, 8), (3, 1 << 20))


def test_rows_that_an_op_does_not_get_are_left_out() -> None:
    kept = weight()
    note("grouped_moe", (8, 256, 256, 2), kept, above=40)

    (calls,) = calls_of([40, 41, 1, 300], CPU)

    assert calls.rows == (41, 300)


def test_a_machine_without_vendors_makes_no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = registry._CHOSEN  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setitem(chosen, ("fp8_linear", "cuda"), "triton")
    monkeypatch.delitem(chosen, ("bf16_linear", "cuda"))
    held = weight(), weight()
    note("fp8_linear", (128, 256), held[0])
    note("bf16_linear", (128, 256), held[1])

    assert calls_of([1, 9], CPU) == []
    run_products([1, 9], CPU)


def test_each_product_is_made_as_the_network_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, rows = fake_deep_gemm.install(monkeypatch), (1, 9, 33)
    held = [
        fp8_weight({"a": 128}, 256, CPU),
        fp8_weight({"a": 128}, 256, CPU, groups=2),
        fp8_weight({"a": 128}, 256, CPU, invariant=True),
    ]
    head = bf16_weight(16, 256, CPU)
    for count in rows:
        codes = torch.zeros(count, 2, 256, dtype=torch.float8_e4m3fn)
        scales = torch.zeros(count, 2, 2)
        one = torch.zeros(count, 256, dtype=torch.float8_e4m3fn), scales[:, 0]
        fp8_linear(*one, *held[0])
        fp8_linear_grouped(codes, scales, *held[1])
        fp8_linear(*one, *held[2], invariant=True)
        bf16_linear(torch.zeros(count, 256, dtype=torch.bfloat16), head)
    want = [*seen]
    seen.clear()

    run_products(rows, CPU)

    assert sorted(map(repr, seen)) == sorted(map(repr, want))


def test_kernels_of_all_products_are_compiled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, stop, said = weight(), Event(), list[str]()
    note("fp8_linear", (128, 256), kept)

    def compiled(
        calls: Sequence[VendorCalls],
        device: torch.device,
        *,
        stop: Event,
        tell: Callable[[str], None],
    ) -> list[str]:
        tell(f"{len(calls)} kinds on {device}, {stop.is_set()}")
        return ["a fault"]

    monkeypatch.setattr("jit_kernels.vendor_products.compile_ahead", compiled)

    assert compile_products([4], CPU, stop=stop, tell=said.append) == ["a fault"]
    assert said == ["1 kinds on cpu, False"]
