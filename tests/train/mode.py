"""What a forward of training does; without torch, for processes that only make data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mode:
    """What a forward does beside the plain network.

    select         attend only the blocks that the indexer chooses; else all visible ones
    train_indexer  compute its loss
    round_weights  every weight as its file holds it
    round_records  keys, and the indexer's queries, as the packed pools hold them
    recompute      keep only the streams between layers, and compute a layer again going back
    measure        attend all blocks, and tell how much of that the indexer would have chosen
    hidden         ratios of the layers that see no block, and their window alone
    """

    select: bool = False
    train_indexer: bool = False
    round_weights: bool = False
    round_records: bool = False
    recompute: bool = False
    measure: bool = False
    hidden: tuple[int, ...] = ()
