"""Networks on tensors and cache views."""
