"""Tests of `runtime.wire`."""
