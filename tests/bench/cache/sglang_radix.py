"""SGLang's `RadixCache`, unmodified, behind the interface of the shared cache benchmark.

Pages have one token, as SGLang runs models without windows. Tokens are counted and have no bytes:
what the tree stores as their places is never read.
"""

import sys
from array import array
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SglangRadix"]


class _Pool:
    """Free tokens; what the tree evicts comes back."""

    device = "cpu"

    def __init__(self, tokens: int) -> None:
        self.free = tokens

    def free_segment(self, value: Any, start_pos: int) -> None:
        self.free += len(value)


class Row:
    """One request."""

    def __init__(self, toks: "array[int]", length: int, match: Any) -> None:
        self.toks, self.n, self.node = toks, length, match.last_device_node
        self.hit = self.full_hit = self.held = self.shared = match.device_prefix_len


class SglangRadix:
    """The adapter."""

    name = "sgl523-radix"

    def __init__(self, bench: Path, peers: Path, tokens: int) -> None:
        sys.path[:0] = [str(bench), str(peers / "sglang-0.5.23")]
        import shims  # pyright: ignore[reportMissingImports]

        installed: Any = shims
        installed.install(["triton", "torchvision", "tvm_ffi", "sentencepiece"])
        from sglang.srt.mem_cache import (  # pyright: ignore[reportMissingImports]
            base_prefix_cache,  # pyright: ignore[reportUnknownVariableType]
            radix_cache,  # pyright: ignore[reportUnknownVariableType]
        )

        self._api: Any = base_prefix_cache
        self._radix: Any = radix_cache
        self._pool = _Pool(tokens)
        self._cache: Any = self._radix.RadixCache.create_simulated(mock_allocator=self._pool)
        self.lost: dict[str, int] = {}

    def match(self, tokens: np.ndarray, length: int) -> Row:
        toks = self._prepared(tokens)
        return Row(toks, length, self._match(toks, length - 1))

    def lock(self, row: Row) -> None:
        self._cache.inc_lock_ref(row.node)

    def alloc(self, row: Row, upto: int, decode: bool = False) -> None:
        need = upto - row.held
        if need > self._pool.free:
            self._cache.evict(self._api.EvictParams(num_tokens=need - self._pool.free))
        self._pool.free -= need
        row.held = upto
        if self._pool.free < 0:
            raise AssertionError("no token for a running request")

    def insert(self, row: Row, upto: int, finished: bool) -> None:
        toks = row.toks = self._prepared(row.toks)
        places = self._radix.torch.zeros(upto, dtype=self._radix.torch.int64)
        key = self._radix.RadixKey(toks, limit=upto)
        done = self._cache.insert(self._api.InsertParams(key=key, value=places))
        # Places of tokens that the tree had already are given back.
        self._pool.free += done.prefix_len - row.shared
        node = self._match(toks, upto).last_device_node
        self._cache.inc_lock_ref(node)
        self._cache.dec_lock_ref(row.node)
        row.node, row.shared = node, upto

    def unlock(self, row: Row) -> None:
        self._cache.dec_lock_ref(row.node)

    def _match(self, toks: "array[int]", limit: int) -> Any:
        key = self._radix.RadixKey(toks, limit=limit)
        return self._cache.match_prefix(self._api.MatchPrefixParams(key=key))

    def _prepared(self, tokens: Any) -> "array[int]":
        if isinstance(tokens, array):
            return tokens
        return array("q", np.ascontiguousarray(tokens, dtype=np.int64).tobytes())
