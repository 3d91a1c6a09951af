"""Load on a real server: a thousand clients of all manners, or ten times what it can compute."""
