"""The stand-in: a tiny untrained model with every kind of layer, for tests that want no sense."""
