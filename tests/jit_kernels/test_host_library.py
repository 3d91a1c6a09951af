"""Compiling at first use: once for the same sources, with the compiler's own words if it fails."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from jit_kernels.host_library import load
from jit_kernels.registry import BackendUnavailable

ANSWER = "int answer(void) { return 42; }\n"
# Loads the library of a folder as two engines at one machine do, and prints what it says.
LOAD = (
    "import sys; from pathlib import Path; from jit_kernels.host_library import load;"
    "print(load('twice', Path(sys.argv[1])).answer())"
)
# Takes its time, and notes that it compiles.
SLOW_COMPILER = """#!/bin/sh
case "$*" in *-dM*) exec cc "$@" ;; esac
echo $$ >> "$(dirname "$0")/calls"
sleep 0.3
exec cc "$@"
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one C file; what is compiled goes beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.c").write_text(ANSWER)
    return folder


def _compiled(sources: Path) -> list[Path]:
    return sorted((sources.parent / "cache" / "umbra" / "native").glob("*"))


def test_all_c_files_of_a_folder_make_one_library(sources: Path) -> None:
    (sources / "twice.c").write_text(
        '#include "answer.h"\nint twice(void) { return 2 * answer(); }'
    )
    (sources / "answer.h").write_text("int answer(void);")

    assert load("both", sources).twice() == 84


def test_sources_may_lie_deeper_and_want_flags(sources: Path) -> None:
    (sources / "op").mkdir()
    (sources / "op" / "host.c").write_text("int number(void) { return NUMBER; }")

    library = load("deep", sources, sources="*/host.c", flags=("-DNUMBER=3",))

    assert library.number() == 3
    assert not hasattr(library, "answer")
    (sources / "op" / "host.c").write_text("int number(void) { return 1 + NUMBER; }")
    assert load("deep", sources, sources="*/host.c", flags=("-DNUMBER=3",)).number() == 4


def test_the_same_sources_are_compiled_once(sources: Path) -> None:
    load("once", sources)
    (before,) = _compiled(sources)
    stamp = before.stat().st_mtime_ns, before.stat().st_ino

    assert load("once", sources).answer() == 42

    assert _compiled(sources) == [before]
    assert (before.stat().st_mtime_ns, before.stat().st_ino) == stamp


@pytest.mark.parametrize("change", ["source", "header", "new file", "compiler"])
def test_whatever_changes_makes_a_new_library(
    sources: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    (sources / "answer.h").write_text("/* nothing yet */")
    load("new", sources)
    (before,) = _compiled(sources)

    if change == "source":
        (sources / "answer.c").write_text(ANSWER.replace("42", "43"))
    elif change == "header":
        (sources / "answer.h").write_text("/* something */")
    elif change == "new file":
        (sources / "more.c").write_text("int more(void) { return 1; }")
    else:
        monkeypatch.setenv("CC", "cc -O1")

    assert load("new", sources).answer() == (43 if change == "source" else 42)
    assert len(_compiled(sources)) == 2
    assert before in _compiled(sources)


def test_a_compiler_may_be_named_with_arguments(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources / "answer.c").write_text("int answer(void) { return NUMBER; }")
    monkeypatch.setenv("CC", "cc '-DNUMBER=(40 + 7)'")

    assert load("named", sources).answer() == 47


@pytest.mark.parametrize("named", ["", "  "])
def test_an_empty_name_is_no_name(
    sources: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("CC", named)

    assert load("empty", sources).answer() == 42


def test_without_a_compiler_it_is_said_what_to_install(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")

    with pytest.raises(BackendUnavailable, match=r"no C compiler 'no-such-compiler'.*gcc.*CC"):
        load("core", sources)

    assert _compiled(sources) == []


def test_an_error_comes_in_the_words_of_the_compiler_and_leaves_nothing(sources: Path) -> None:
    (sources / "answer.c").write_text("int answer(void) { return nowhere; }")

    with pytest.raises(BackendUnavailable, match=r"failed on core-\w+:\n(?s:.*)nowhere"):
        load("core", sources)

    assert _compiled(sources) == []


def test_an_error_mended_is_forgotten(sources: Path) -> None:
    (sources / "answer.c").write_text("int answer(void) { return nowhere; }")
    with pytest.raises(BackendUnavailable):
        load("core", sources)

    (sources / "answer.c").write_text(ANSWER)

    assert load("core", sources).answer() == 42


def test_a_cache_that_cannot_be_written_is_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources.parent / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(sources.parent / "file"))

    with pytest.raises(BackendUnavailable, match=r"file/umbra.*XDG_CACHE_HOME"):
        load("core", sources)


def test_a_folder_that_cannot_be_looked_into_is_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a home folder of somebody else, `stat` fails, here whoever asks.
    monkeypatch.setenv("XDG_CACHE_HOME", str(sources.parent / ("x" * 300)))

    with pytest.raises(BackendUnavailable, match=r"xxx.*XDG_CACHE_HOME"):
        load("core", sources)


def test_who_has_no_home_is_told_to_name_a_folder(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nobody)

    with pytest.raises(BackendUnavailable, match=r"home directory.*XDG_CACHE_HOME"):
        load("core", sources)


def test_a_folder_that_takes_no_file_is_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied", "native/x.so")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)

    with pytest.raises(BackendUnavailable, match=r"native/x\.so.*XDG_CACHE_HOME"):
        load("core", sources)


def test_a_library_that_cannot_be_loaded_is_named(sources: Path) -> None:
    # Compiles, and is refused by the loader: as a damaged file is, or one that may not be run.
    (sources / "answer.c").write_text("int no(void); int answer(void) { return no(); }")

    with pytest.raises(BackendUnavailable, match=r"native/core-\w+\.so.*XDG_CACHE_HOME"):
        load("core", sources)


def test_the_home_folder_keeps_what_is_compiled_unless_another_is_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(sources.parent))

    load("core", sources)

    folder = sources.parent / ".cache" / "umbra" / "native"
    assert [path.name[:5] for path in folder.iterdir()] == ["core-"]


def test_of_processes_that_want_the_same_one_compiles(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "slow-cc"
    compiler.write_text(SLOW_COMPILER, encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    command = [sys.executable, "-c", LOAD, str(sources)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ}) for _ in range(3)
    ]

    said = [process.communicate(timeout=250)[0] for process in started]

    assert said == [b"42\n"] * 3
    assert [process.returncode for process in started] == [0] * 3
    assert len((tmp_path / "calls").read_text(encoding="utf-8").splitlines()) == 1
    assert len(_compiled(sources)) == 1
