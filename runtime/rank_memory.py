"""What the memory of each rank's device holds, as `/server_info`, metrics and `/cache` tell it.

Part of the messages of `runtime.messages` and of the wire to ranks.
"""

import msgspec

__all__ = ["RankMemory"]


class RankMemory(msgspec.Struct, frozen=True, tag=True):
    """Bytes of one rank's device, or of its host on the CPU, once it is ready to serve.

    weight_bytes      of the weights it holds; on a GPU with what kernels keep for themselves
    pool_bytes        of all its pools, dummies included
    activation_bytes  most that a step takes; 0 on the CPU, where it is not measured
    graph_bytes       of CUDA graphs
    total_bytes       of the device, or of the host
    free_bytes        that nobody used then
    """

    rank: int
    weight_bytes: int
    pool_bytes: int
    activation_bytes: int
    graph_bytes: int
    total_bytes: int
    free_bytes: int
