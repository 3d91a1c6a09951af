"""Steps in plain torch, on any device."""
