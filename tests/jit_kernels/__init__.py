"""Tests of the ops: every backend against the reference."""
