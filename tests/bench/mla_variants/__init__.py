"""Ways to attend to latent records, side by side."""
