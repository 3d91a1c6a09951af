"""Tests of runtime.server."""
