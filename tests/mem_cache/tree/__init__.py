"""Tests of the cache: tree, pools, policy."""
