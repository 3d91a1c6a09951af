"""Triton's cache gives the turn to compile a kernel to one of those that want it."""

import threading
from pathlib import Path

import pytest

pytest.importorskip("triton")

from triton import knobs  # pyright: ignore[reportMissingTypeStubs]
from triton.runtime.cache import FileCacheManager, get_cache_manager  # pyright: ignore[reportMissingTypeStubs]

from jit_kernels.triton_cache import OneCompilerCache, use_one_compiler

KEY, NAME = "00ff", "kernel.json"
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(knobs.cache, "manager_class", knobs.cache.manager_class)
    monkeypatch.delenv("TRITON_CACHE_MANAGER", raising=False)


def test_the_second_waits_for_the_first_and_finds_its_kernel() -> None:
    use_one_compiler()
    first, second = get_cache_manager(KEY), get_cache_manager(KEY)
    found: list[dict[str, str] | None] = []
    assert first.get_group(NAME) is None
    waiting = threading.Thread(target=lambda: found.append(second.get_group(NAME)), daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()

    group = {NAME: first.put("{}", NAME)}
    first.put_group(NAME, group)
    waiting.join(LIMIT_S)

    assert found == [group]
    assert get_cache_manager(KEY).get_group(NAME) == group
    assert sorted(path.name for path in Path(group[NAME]).parent.iterdir()) == [
        f"__grp__{NAME}",
        NAME,
    ]


def test_a_kernel_that_does_not_compile_leaves_its_turn_to_the_next() -> None:
    first = OneCompilerCache(KEY)
    assert first.get_group(NAME) is None

    del first

    assert OneCompilerCache(KEY).get_group(NAME) is None


def test_a_cache_that_the_environment_names_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_MANAGER", "triton.runtime.cache:FileCacheManager")

    use_one_compiler()

    assert type(get_cache_manager(KEY)) is FileCacheManager
