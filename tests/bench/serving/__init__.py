"""How fast a server serves: `python -m tests.bench.serving WORKLOAD --url URL`."""
