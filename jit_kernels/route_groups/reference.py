"""Routing by groups in plain torch."""

import torch

# DeepSeek's: what a sum of weights is at least.
LEAST = 1e-20


def route_groups(
    logits: torch.Tensor,
    bias: torch.Tensor | None,
    top_k: int,
    groups: int,
    kept: int,
    normalised: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose experts; see `jit_kernels.route_groups.route_groups`."""
    if bias is None:
        scores = (logits - logits.amax(1, keepdim=True)).exp()
        scores = scores / _sums(scores)
        compared = scores.unflatten(1, (groups, -1))
        of_groups = compared.amax(2)
    else:
        # torch's sigmoid may differ in its last bit between the vectors of a tensor and its tail.
        scores = 1.0 / (1.0 + (-logits).exp())
        compared = (scores + bias).unflatten(1, (groups, -1))
        best, second = compared.topk(2, 2).values.unbind(2)
        of_groups = best + second
    others = _best(of_groups, groups)[:, kept:]
    compared = compared.scatter(
        1, others.unsqueeze(2).expand(-1, -1, compared.shape[2]), -torch.inf
    )
    experts = _best(compared.flatten(1), top_k)
    weights = scores.gather(1, experts)
    if normalised:
        weights = weights / (_sums(weights) + LEAST)
    return experts, weights * scale


def _best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the greatest, [T, count], best first, ties to the lower one."""
    return torch.sort(scores, dim=-1, descending=True, stable=True)[1][:, :count]


def _sums(scores: torch.Tensor) -> torch.Tensor:
    """Return the sums of rows, [T, 1]: halves are added, the same in any company."""
    while scores.shape[1] > 1:
        half = scores.shape[1] // 2
        pairs, rest = scores[:, :half] + scores[:, half : 2 * half], scores[:, 2 * half :]
        scores = torch.cat((pairs, rest), 1)
    return scores
