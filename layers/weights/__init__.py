"""Weights: files, formats, random numbers."""
