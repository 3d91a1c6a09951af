"""Training of the default model: its data, its network in a form that learns, and the run."""
