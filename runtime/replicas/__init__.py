"""Several servers behind one address: which replica computes a request."""
