"""Tests of `runtime/gguf`."""
