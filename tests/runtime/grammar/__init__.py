"""Tests of `runtime.grammar`."""
