"""Tests of runtime.wire."""
