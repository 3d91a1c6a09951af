"""Tests of runtime.chat."""
