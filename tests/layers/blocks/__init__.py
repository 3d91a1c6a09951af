"""Tests of `layers/blocks`."""
