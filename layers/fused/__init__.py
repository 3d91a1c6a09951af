"""The network over fused kernels: quantised weights, decode steps that a graph can replay."""
