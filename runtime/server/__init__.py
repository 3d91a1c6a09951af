"""HTTP: routes and the dialects they speak."""
