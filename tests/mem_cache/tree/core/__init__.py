"""Tests of the C core."""
