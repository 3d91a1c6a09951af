"""How well the default model answers, asked through a real server."""
