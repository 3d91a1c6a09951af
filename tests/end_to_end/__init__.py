"""Tests through real processes and sockets: a server, an engine, a client."""
