"""Umbra's version: pyproject.toml reads it from here, so that a checkout needs no installing."""

VERSION = "0.1.0"
