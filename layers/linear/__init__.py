"""Kinds of linear layers: plain numbers, fp8, bfloat16."""
