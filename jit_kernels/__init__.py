"""Pure functions on tensors: one folder an op, one torch reference each."""
