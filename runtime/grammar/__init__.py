"""Grammars for outputs: each one compiled and matched in a process of its own."""
