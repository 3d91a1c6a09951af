"""Random lives of a scheduler and its manager under one virtual clock and one seed."""
