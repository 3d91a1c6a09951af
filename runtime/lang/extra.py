"""The packages of the `lang` extra, which programs need and a server does not."""

import functools
from importlib.util import find_spec

from runtime.errors import ConfigError


@functools.cache
def require(package: str) -> None:
    """Raise ConfigError, saying how to install it, where a package is not there."""
    if find_spec(package) is None:
        raise ConfigError(
            f"programs need {package}, which is not installed: "
            "pip install -e '.[lang]' in Umbra's checkout"
        )
