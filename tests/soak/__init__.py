"""Hours of random traffic on a real server with small pools, and what must be true of it then."""
