"""What several tests share: comparison, cases, faults."""
