"""Tests of `layers/models/gemma3`."""
