"""Who holds which share of a network."""
