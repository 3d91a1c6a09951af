"""The API process under load: a real server with a scheduler stand-in, and its clients."""
