"""How near to the machine's own limits: `python -m tests.bench.roofline FILE.csv ...`."""
