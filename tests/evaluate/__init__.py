"""Accuracy of the default model, measured through a real server."""
