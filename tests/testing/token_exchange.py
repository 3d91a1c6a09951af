"""Copies of units between the pools of token runners, as an exchange of ranks makes them."""

from collections.abc import Sequence

import numpy as np

from runtime.wire.arrays import INT32, unpacked
from runtime.wire.step import Copies, Exchange, UnitTransfer
from tests.testing.token_runner import TokenRunner


def exchange_units(runners: Sequence[TokenRunner], exchange: Exchange) -> None:
    """Make all copies of an exchange; all sources are read before any target is written."""
    for runner, copies in zip(runners, exchange.early, strict=True):
        _copy(runner, copies)
    read = [_read(runners[one.giver], one) for one in exchange.transfers]
    for one, units in zip(exchange.transfers, read, strict=True):
        _write(runners[one.taker], one, units)


def pairs_of(data: bytes, width: int = 2) -> np.ndarray:
    """Return [2, k] sources and destinations."""
    return unpacked(data, INT32, -1, width)[:, :2].T if data else np.zeros((2, 0), np.int32)


def _arrays(runner: TokenRunner) -> tuple[tuple[np.ndarray, ...], ...]:
    return (runner.full, runner.tokens), (runner.swa,), (runner.ring_rows, runner.banks)


def _copy(runner: TokenRunner, copies: Copies) -> None:
    widths = ((copies.pages, 2), (copies.windows, 2), (copies.states, 3))
    for arrays, (data, width) in zip(_arrays(runner), widths, strict=True):
        for source, target in pairs_of(data, width).T:
            for array in arrays:
                array[target] = array[source]


def _read(runner: TokenRunner, one: UnitTransfer) -> list[list[np.ndarray]]:
    kinds = zip(_arrays(runner), (one.pages, one.windows, one.states), strict=True)
    return [[array[pairs_of(data)[0]] for array in arrays] for arrays, data in kinds]


def _write(runner: TokenRunner, one: UnitTransfer, units: list[list[np.ndarray]]) -> None:
    kinds = zip(_arrays(runner), (one.pages, one.windows, one.states), units, strict=True)
    for arrays, data, read in kinds:
        for array, values in zip(arrays, read, strict=True):
            array[pairs_of(data)[1]] = values
