"""CUDA C++ compiled at first use; a script stands in for nvcc."""

import os
import re
from pathlib import Path

import pytest
import torch

import jit_kernels
from jit_kernels.cuda_library import compile_all, load
from jit_kernels.registry import BackendUnavailable

OPS = Path(jit_kernels.__file__).parent

# Compiles as C what nvcc would compile, and notes that it was called.
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo 1 && exit
echo "$@" >> "$(dirname "$0")/calls"
while [ $# -gt 0 ]; do
    [ "$1" = -o ] && target=$2
    case $1 in -I*) headers=$1 ;; esac
    source=$1
    shift
done
cc -x c -shared -fPIC "$headers" -o "$target" "$source"
"""


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one source; the compiler and what it makes lie beside it."""
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "nvcc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "answer.cu").write_text("int answer(void) { return 42; }\n")
    return folder


def _calls(sources: Path) -> list[str]:
    return (sources.parent / "bin" / "calls").read_text().splitlines()


def test_the_same_sources_are_compiled_once_for_the_device(sources: Path) -> None:
    assert load("once", sources).answer() == 42
    assert load("once", sources).answer() == 42

    (call,) = _calls(sources)
    assert "-gencode=arch=compute_90a,code=sm_90a" in call


def test_a_header_or_another_device_makes_a_new_library(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load("new", sources)

    (sources / "more.cuh").write_text("")
    load("new", sources)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    load("new", sources)

    assert len(_calls(sources)) == 3
    assert "arch=compute_89,code=sm_89" in _calls(sources)[2]


def test_sources_include_what_all_ops_share_and_are_compiled_anew_when_that_changes(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = sources.parent / "device"
    shared.mkdir()
    monkeypatch.setattr("jit_kernels.cuda_library._HEADERS", shared)
    (sources / "answer.cu").write_text(
        '#include "device/number.cuh"\nint answer(void) { return NUMBER; }\n'
    )

    for number in (7, 8):
        (shared / "number.cuh").write_text(f"#define NUMBER {number}\n")
        assert load("shared", sources).answer() == number


def test_every_header_that_a_source_includes_is_there() -> None:
    for source in OPS.rglob("*.cu*"):
        for name in re.findall(r'#include "(.*)"', source.read_text()):
            assert (source.parent / name).is_file() or (OPS / name).is_file(), (source, name)


def test_only_the_header_of_launch_order_says_when_kernels_begin() -> None:
    words = ("griddepcontrol", "cudaGridDependency", "ProgrammaticLaunch", "ProgrammaticStream")
    named = {
        source.relative_to(OPS).as_posix()
        for source in OPS.rglob("*.cu*")
        if any(word in source.read_text() for word in words)
    }
    assert named == {"device/order.cuh"}


def test_an_error_comes_in_the_words_of_the_compiler_and_leaves_nothing(sources: Path) -> None:
    (sources / "answer.cu").write_text("int answer(void) { return nowhere; }")

    with pytest.raises(BackendUnavailable, match=r"failed on [\w-]+-sources-\w+:\n(?s:.*)nowhere"):
        load("broken", sources)

    assert os.listdir(sources.parent / "cache" / "umbra" / "native") == []


def test_a_cache_that_cannot_be_written_is_named(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sources.parent / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(sources.parent / "file"))

    with pytest.raises(BackendUnavailable, match="XDG_CACHE_HOME"):
        load("nowhere", sources)


def test_without_a_compiler_it_is_said(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_HOME", str(sources))

    with pytest.raises(BackendUnavailable, match="there is no nvcc"):
        load("none", sources)


def test_all_libraries_are_compiled_before_they_are_asked_for(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = sources.parent / "ops"
    for op, text in (("one", "int answer(void) { return 1; }"), ("bad", "int answer(void) { ")):
        (ops / op / "cuda").mkdir(parents=True)
        (ops / op / "cuda" / "answer.cu").write_text(text)
    monkeypatch.setattr("jit_kernels.cuda_library._OPS", ops)

    (fault,) = compile_all()

    assert "failed on bad-cuda-" in fault
    assert load("one", ops / "one" / "cuda").answer() == 1
    assert len(_calls(sources)) == 2


def test_without_a_compiler_nothing_is_compiled(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(sources))

    assert compile_all() == []
