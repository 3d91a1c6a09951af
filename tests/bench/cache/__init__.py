"""The cache against its peers: the adapter, the ledger, and one command that runs it all."""
