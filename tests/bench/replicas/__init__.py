"""N replicas behind a router, simulated: the real cache and choice, and a virtual clock."""
