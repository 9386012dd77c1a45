"""Routings after 2018 as their authors' code computes them: votes are stored, and autograd does the rest.

Written from the formulas, in the order of the authors' operations. All take poses ``[B, I, d_in]``, activations
``[B, I]`` that some do not read, the parts of a dense layer by name, and the passes; and return poses ``[B, J, d_out]``
and activations ``[B, J]``.

Sources: those of the functions of :mod:`torchcaps.ops` of the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Routed = tuple[Tensor, Tensor]
Parts = Mapping[str, Any]


def elementwise(u: Tensor, _: Tensor, parts: Parts, n_iters: int) -> Routed:
    """Multiply number by number, and add up what is stored."""
    del n_iters
    s = (u.unsqueeze(2) * parts["weight"]).sum(dim=1)  # of [B, I, J, D]
    pose = F.relu(parts["norm"](s.flatten(0, 1)).view_as(s) + parts["bias"])
    return pose, pose.norm(dim=2)


def self_attention(u: Tensor, _: Tensor, parts: Parts, n_iters: int) -> Routed:
    """Sum the columns of the Gram matrix of the votes, ``[B, J, I, I]``, as the paper prints it."""
    del n_iters
    votes = torch.einsum("bid,ijde->bjie", u, parts["weight"])
    logit = (votes @ votes.mT).sum(dim=3) / math.sqrt(votes.shape[3])  # [B, J, I]
    coupling = logit.softmax(dim=1) + parts["prior_bias"].mT
    s = (coupling.unsqueeze(3) * votes).sum(dim=2)
    length = s.norm(dim=2, keepdim=True)
    pose = (1 - (-length).exp()) * s / length
    return pose, pose.norm(dim=2)


def self_routing(u: Tensor, a: Tensor, parts: Parts, n_iters: int) -> Routed:
    """Share out stored votes by a linear layer in each lower capsule."""
    del n_iters
    weight = parts["weight"]
    votes = (u[:, :, None, None] @ weight).squeeze(3)  # [B, I, J, D]
    logit = (parts["route_weight"] @ u.unsqueeze(3)).squeeze(3) + parts["route_bias"]
    share = a.unsqueeze(2) * logit.softmax(dim=2)
    total = share.sum(dim=1, keepdim=True)
    return ((share / total).unsqueeze(3) * votes).sum(dim=1), total.squeeze(1) / a.sum(dim=1, keepdim=True)


def inverted_attention(u: Tensor, a: Tensor, parts: Parts, n_iters: int) -> Routed:
    """Make all votes anew wherever they are read, by products of three."""
    del a
    weight = parts["weight"]
    side = weight.shape[2]
    m = u.unflatten(2, (side, side))
    share = m.new_full((*m.shape[:2], weight.shape[1]), 1 / weight.shape[1])
    upper = _normalized(torch.einsum("bij,birk,ijkc->bjrc", share, m, weight), parts)
    for _ in range(n_iters - 1):
        agreement = torch.einsum("birk,ijkc,bjrc->bij", m, weight, upper)
        share = (agreement / side).softmax(dim=2)  # √ of side² numbers
        upper = _normalized(torch.einsum("bij,birk,ijkc->bjrc", share, m, weight), parts)
    pose = upper.flatten(2)
    return pose, pose @ parts["score_weight"] + parts["score_bias"]


def heinsen_matrix(u: Tensor, f: Tensor, parts: Parts, n_iters: int) -> Routed:
    """Fit Gaussians to stored votes, of which the squares of differences are stored, too."""
    weight = parts["weight"]
    side = weight.shape[2]
    weight = weight.expand(u.shape[1], -1, -1, -1)
    votes = torch.einsum("ijdh,bicd->bijch", weight, u.unflatten(2, (side, side))) + parts["bias"]

    def fitted(share: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        use = f.unsqueeze(2) * share
        ignored = f.unsqueeze(2) - use
        score = (parts["beta_use"] * use).sum(dim=1) - (parts["beta_ign"] * ignored).sum(dim=1)
        over = 1 / (use.sum(dim=1) + 1e-5)
        mean = torch.einsum("bij,bijch,bj->bjch", use, votes, over)
        square = (votes - mean.unsqueeze(1)) ** 2
        return score, mean, square, torch.einsum("bij,bijch,bj->bjch", use, square, over) + 1e-5

    score, mean, square, variance = fitted(torch.full_like(votes[..., 0, 0], 1 / votes.shape[2]))
    for _ in range(n_iters - 1):
        distance = torch.einsum("bijch,bjch->bij", square, 1 / (2 * variance))
        own = F.logsigmoid(score) - variance.sqrt().log().sum(dim=(2, 3))
        score, mean, square, variance = fitted((own.unsqueeze(1) - distance).softmax(dim=2))
    return mean.flatten(2), score


def heinsen_vector(x: Tensor, a: Tensor, parts: Parts, n_iters: int) -> Routed:
    """Store the votes, as the author's code does with ``memory_efficient=False``; by default it stores none."""
    del a
    scaled = x * x.shape[1] ** -0.5
    votes = torch.einsum("bid,jd,dh->bijh", scaled, parts["vote_factor"], parts["vote_weight"]) + parts["vote_bias"]
    f = ((scaled * parts["activation_weight"]).sum(dim=2) + parts["activation_bias"]).sigmoid().unsqueeze(2)

    def gathered(share: Tensor) -> tuple[Tensor, Tensor]:
        use = f * share
        credit = parts["beta_use"] * use - parts["beta_ign"] * (f - use)
        upper = torch.einsum("bij,bijh->bjh", credit, votes)
        return F.layer_norm(upper, upper.shape[2:]), credit.sum(dim=1)

    upper, score = gathered(torch.full_like(votes[..., 0], 1 / votes.shape[2]))
    for _ in range(n_iters - 1):
        guess = torch.einsum("bjh,hd,jd->bjd", upper, parts["prediction_weight"], parts["prediction_factor"])
        near = torch.einsum("bid,bjd->bij", x, guess + parts["prediction_bias"])
        share = F.logsigmoid(near * parts["similarity_weight"] + parts["similarity_bias"]).softmax(dim=2)
        upper, score = gathered(share)
    return upper, score


def degree(u: Tensor, _: Tensor, parts: Parts, n_iters: int) -> Routed:
    """Make the matrix of edges between all votes for a capsule, ``[B, J, I, I]``, and sum its rows."""
    del n_iters
    votes = torch.einsum("bid,ijde->bjie", u, parts["weight"])
    edges = (votes @ votes.mT) / votes.square().sum(dim=3, keepdim=True).clamp_min(1e-8)
    s = (edges.sum(dim=3).softmax(dim=2).unsqueeze(3) * votes).sum(dim=2)
    square = s.square().sum(dim=2, keepdim=True)
    pose = s * square.sqrt() / (1 + square)
    return pose, pose.norm(dim=2)


def attention(u: Tensor, _: Tensor, parts: Parts, n_iters: int) -> Routed:
    """Read all votes for a capsule by one linear layer, and weigh what is stored."""
    del n_iters
    votes = (u[:, :, None, None] @ parts["weight"]).squeeze(3) + parts["vote_bias"]  # [B, I, J, D]
    logit = torch.einsum("bkjd,ikjd->bij", votes, parts["attention_weight"])
    s = (logit.softmax(dim=1).unsqueeze(3) * votes).sum(dim=1)
    pose = ((s.unsqueeze(2) @ parts["activation_weight"]).squeeze(2) + parts["activation_bias"]).tanh()
    return pose, pose.norm(dim=2) / math.sqrt(pose.shape[2])


def _normalized(s: Tensor, parts: Parts) -> Tensor:
    normal = F.layer_norm(s.flatten(2), (s[0, 0].numel(),), parts["norm_weight"], parts["norm_bias"])
    return normal.view_as(s)


#: By the names of :data:`~torchcaps.layers.routings.ROUTINGS`.
AUTHORS: Mapping[str, Callable[[Tensor, Tensor, Parts, int], Routed]] = {
    each.__name__: each
    for each in (
        elementwise,
        self_attention,
        self_routing,
        inverted_attention,
        heinsen_matrix,
        heinsen_vector,
        degree,
        attention,
    )
}
