"""The command line: defaults, what goes to the server, and misuse."""

import pytest

from tests.evaluate import options as options_module
from tests.evaluate.options import parse
from tests.evaluate.variants import Variant, make_variants, no_cache, unfit


@pytest.fixture(autouse=True)
def _with_grammar(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(options_module, "_has_grammar", lambda: True)


def test_what_follows_two_dashes_goes_to_the_server() -> None:
    options = parse(["--quick", "--n", "3", "--", "--dtype", "float32"])

    assert options.server_flags == ("--dtype", "float32")
    assert options.n == 3
    assert options.told()["server_flags"] == ["--dtype", "float32"]


def test_quick_asks_less_of_everything() -> None:
    quick, full = parse(["--quick"]), parse([])

    assert quick.n < full.n
    assert set(quick.distances) < set(full.distances)
    assert quick.tasks == full.tasks
    assert full.distances[-1] == 16384


def test_the_device_and_the_mode_go_to_every_server() -> None:
    options = parse(["--device", "cuda", "--deterministic", "--", "--experts", "fp8"])

    assert options.flags() == ("--device", "cuda", "--deterministic", "--experts", "fp8")
    assert (options.told()["device"], options.told()["deterministic"]) == ("cuda", True)
    assert parse([]).flags() == ()


@pytest.mark.parametrize(
    ("variant", "on_cuda"),
    [
        (Variant("default"), True),
        (Variant("fp8"), True),
        (Variant("bf16"), False),
        (Variant("fp32"), False),
        (Variant("without c4", (), "c4"), False),
        (Variant("without sinks", (), "sinks"), True),
        (no_cache(()), True),
    ],
    ids=lambda value: value.name if isinstance(value, Variant) else "",
)
def test_what_only_the_cpu_can_serve_is_said_to_be_so(variant: Variant, on_cuda: bool) -> None:
    assert unfit(variant, "cpu") is None
    assert (unfit(variant, "cuda") is None) == on_cuda


@pytest.mark.parametrize(
    "argv",
    [
        ["--n", "-1"],
        ["--distances", "0"],
        ["--tasks", "poetry"],
        ["--conditions", "lukewarm"],
        ["--url", "http://127.0.0.1:1", "--kv", "fp8"],
        ["--url", "http://127.0.0.1:1", "--", "--dtype", "float32"],
        ["--url", "http://127.0.0.1:1", "--device", "cpu"],
        ["--url", "http://127.0.0.1:1", "--deterministic"],
        ["--device", "tpu"],
        ["--without", "sinks"],
        ["--nonsense"],
    ],
    ids=" ".join,
)
def test_misuse_exits_with_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv)

    assert ended.value.code == 2


def test_a_schema_is_not_asked_for_where_no_server_could_keep_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options_module, "_has_grammar", lambda: False)

    with pytest.raises(SystemExit):
        parse([])

    assert "json_schema wants xgrammar" in capsys.readouterr().err
    assert parse(["--tasks", "sums"]).tasks == ("sums",)
    assert "json_schema" in parse(["--url", "http://127.0.0.1:1"]).tasks


def test_the_default_comes_first_and_flags_go_to_all() -> None:
    variants = make_variants(["fp32"], ["window"], ["--dtype", "float32"])

    assert variants == [
        Variant("default", ("--dtype", "float32")),
        Variant("fp32", ("--kv-cache-dtype", "fp32", "--dtype", "float32")),
        Variant("without window", ("--dtype", "float32"), "window"),
    ]
