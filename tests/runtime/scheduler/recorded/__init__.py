"""Plans and answers of random workloads, recorded: what a change must not alter unawares."""
