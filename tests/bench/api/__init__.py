"""The API process under load: its server with a scheduler stand-in, and clients that read streams."""
