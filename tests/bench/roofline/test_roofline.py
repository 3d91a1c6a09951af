"""CSV files of the benchmarks become one table; what is not of them is refused."""

from pathlib import Path

import pytest

from tests.bench.kernels.bench_gemm import FIGURES
from tests.bench.kernels.rows import MOVED, WHERE
from tests.bench.network.report import COLUMNS as STEPS
from tests.bench.roofline.__main__ import main
from tests.bench.roofline.pictures import write_pictures
from tests.bench.roofline.point import Machine, UnknownColumns, read_points

MACHINE = Machine(bytes=4e12, fp8=1e15, bf16=5e14)
HEAD = "2026-11-22,H200,abc"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A file of each benchmark."""
    texts = {
        "ops.csv": ((*WHERE, *MOVED), f"{HEAD},rope,triton,T=256,4,1,2,4\n"),
        "products.csv": (
            (*WHERE, *FIGURES),
            # 8 us: 8 MB are 2 us of moving, 4 us of multiplying are the floor; then 16 MB, 4 us.
            f"{HEAD},fp8_linear,deep_gemm,64 rows,8,4,2,1,500\n"
            f"{HEAD},fp8_linear,deep_gemm,1 rows,8,4,2,2,10\n",
        ),
        "steps.csv": (STEPS, f"{HEAD},decode,fp4,64,8192,8,8000,,6,200,0.75\n"),
    }
    paths: list[Path] = []
    for name, (columns, rows) in texts.items():
        paths.append(tmp_path / name)
        paths[-1].write_text(",".join(columns) + "\n" + rows, "utf-8")
    return paths


def test_every_benchmark_gives_points(files: list[Path]) -> None:
    rope, many, one, step = read_points(files, MACHINE)

    assert (rope.share, rope.bound) == (0.25, "memory")
    assert rope.bytes == pytest.approx(1e12)
    assert (many.bound, many.intensity) == ("compute", pytest.approx(500))
    assert (one.bound, one.intensity) == ("memory", pytest.approx(5))
    assert (step.shape, step.us, step.share) == ("B=64 tokens=8192", 8000, 0.75)


def test_the_last_of_several_measurements_counts(files: list[Path]) -> None:
    with files[0].open("a", encoding="utf-8") as file:
        file.write(f"{HEAD},rope,triton,T=256,2,1,2,2\n")

    assert [point.us for point in read_points(files[:1], MACHINE)] == [2]


def test_a_step_without_a_floor_has_no_share(files: list[Path]) -> None:
    with files[2].open("a", encoding="utf-8") as file:
        file.write(f"{HEAD},prefill,fp8,1,8192,80,102400,8192,,,\n")

    prefill = read_points(files[2:], MACHINE)[-1]

    assert (prefill.share, prefill.bytes, prefill.bound) == (None, None, None)
    assert prefill.shape == "B=1 tokens=8192 chunk=8192"


def test_the_table_says_it_all(files: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*map(str, files), "--bandwidth", "4e12"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "### H200"
    assert lines[4] == "| rope | triton | T=256 | 4.00 | 1.00 | 25% | 2.00 | 1.00 | - | memory |"
    assert lines[5].endswith("| 8.00 | 4.00 | 50% | - | 1.00 | 500 | compute |")
    assert main([*map(str, files), "--op", "decode"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6


def test_another_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n", "utf-8")

    with pytest.raises(UnknownColumns, match=r"other\.csv"):
        read_points([other], MACHINE)
    assert main([str(other)]) == 1
    assert main([str(tmp_path / "none.csv")]) == 1
    assert "error: " in capsys.readouterr().err


def test_pictures_are_written(files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    written = write_pictures(tmp_path / "p", read_points(files, MACHINE), MACHINE)

    assert [path.name for path in written] == ["roofline.png", "bandwidth.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
