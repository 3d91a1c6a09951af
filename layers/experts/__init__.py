"""Mixtures of experts: plain and quantised weights."""
