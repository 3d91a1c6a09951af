"""The network without a server against its floor: `python -m tests.bench.network`."""
