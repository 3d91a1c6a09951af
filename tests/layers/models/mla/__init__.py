"""Tests of `layers/models/mla`."""
