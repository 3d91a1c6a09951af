"""Runs step plans on a model and samples from its logits."""
