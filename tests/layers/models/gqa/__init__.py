"""Tests of `layers/models/gqa`."""
