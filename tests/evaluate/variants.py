"""Which servers are compared: the default, other formats of the KV records, networks that lack a
path.
"""

import contextlib
import tempfile
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.evaluate.ablation import ABLATED_LAUNCHER, PATHS, without_sinks
from tests.evaluate.server import ServerFault
from tests.testing.server_process import LAUNCHER, running_server

SINKS = "sinks"
ABLATIONS = (*PATHS, SINKS)
KV_FORMATS = ("fp8", "bf16", "fp32")
DEFAULT = "default"
# Computes the same prompts without a cache and in other steps: neither pages nor windows are
# multiples of them.
NO_CACHE = "no cache"
_NO_CACHE_FLAGS = ("--disable-radix-cache", "--chunked-prefill-size", "200")
# What a server on the CPU takes unasked; elsewhere it would take all memory there is.
_POOLS = ("--kv-cache-bytes", str(1 << 30))
_READY_S = 900.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One server to be evaluated.

    name       "default", "no cache", a KV format, or "without" a path
    flags      of `launch_server.py`
    taken      the path that its network lacks, of `ABLATIONS`
    """

    name: str
    flags: tuple[str, ...] = ()
    taken: str | None = None


def make_variants(
    kv_formats: Sequence[str], ablations: Sequence[str], flags: Sequence[str]
) -> list[Variant]:
    """Return the default, which all others are compared with, then the others.

    flags  of all of them
    """
    common = tuple(flags)
    variants = [Variant(DEFAULT, common)]
    variants += [Variant(kind, ("--kv-cache-dtype", kind, *common)) for kind in kv_formats]
    variants += [Variant(f"without {path}", common, path) for path in ablations]
    return variants


def no_cache(flags: Sequence[str]) -> Variant:
    """Return the variant that tells what arithmetic alone changes; `flags` as for the others."""
    return Variant(NO_CACHE, (*flags, *_NO_CACHE_FLAGS))


def unfit(variant: Variant, device: str) -> str | None:
    """Return why a variant is not served on `device` ("cpu", "cuda"), None if it is."""
    if device == "cpu":
        return None
    if variant.name in KV_FORMATS and variant.name != "fp8":
        return "on CUDA, KV records are fp8: give --device cpu"
    if variant.taken in PATHS:
        return "paths are taken away from the network on the CPU: give --device cpu"
    return None


@contextlib.contextmanager
def served(variant: Variant, model: Path | None, *flags: str) -> Generator[str]:
    """Run a variant's server; yield its URL.

    model  checkpoint folder, None: the server's own default
    flags  go before the variant's, which win
    Raises ServerFault for a server that does not start.
    """
    with contextlib.ExitStack() as stack:
        launcher = [str(LAUNCHER)]
        if variant.taken == SINKS:
            assert model is not None, "the default model's folder is the server's own affair"
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            model = without_sinks(model, Path(folder))
        elif variant.taken is not None:
            launcher = [*ABLATED_LAUNCHER, variant.taken]
        chosen = () if model is None else ("--model-path", str(model))
        running = running_server(
            *(*_POOLS, *chosen, *flags, *variant.flags),
            launcher=launcher,
            check=False,
            ready_s=_READY_S,
        )
        try:
            server = stack.enter_context(running)
        except AssertionError as fault:
            raise ServerFault(f"{variant.name}: {fault}") from fault
        yield server.url
