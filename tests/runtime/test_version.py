"""There is one version, wherever it is asked for."""

import tomllib
from pathlib import Path

from runtime.version import VERSION

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_package_takes_its_version_from_the_module() -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert "version" not in told["project"]
    assert told["project"]["dynamic"] == ["version"]
    attribute = told["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert attribute == "runtime.version.VERSION"
    assert all(part.isdigit() for part in VERSION.split("."))
