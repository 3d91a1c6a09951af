"""Networks by the `model_type` of their configuration."""
