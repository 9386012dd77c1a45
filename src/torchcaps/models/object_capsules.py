"""Object capsules of stacked auto-encoders: each one says where its parts are expected."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.ops.affine import AffineParts, affine_matrix
from torchcaps.ops.precision import constant

#: Of a scale that the network reads: s = softplus(x + this) + the least.
_SCALE_SHIFT, _LEAST_SCALE = 0.5, 0.01


#: Numbers of an affine transformation.
_POSE = 6


class Predictions(NamedTuple):
    """What object capsules predict of their parts.

    Attributes:
        pose: object-viewer relation OV of each object, ``[B, K, 3, 3]``.
        presence: a of each object, 0 … 1, ``[B, K]``.
        votes: OV · OP, pose of each part that each object predicts, ``[B, K, M, 3, 3]``.
        vote_presence: a_k · a_km, ``[B, K, M]``.
        scale: of each vote, ``[B, K, M]``.
        dynamic: what the image adds to the numbers of the object-part relations OP, ``[B, K, M, 6]``.
    """

    pose: Tensor
    presence: Tensor
    votes: Tensor
    vote_presence: Tensor
    scale: Tensor
    dynamic: Tensor


class PerObject(nn.Module):
    """A linear layer of its own for each object: ``[B, K, d_in]`` to ``[B, K, d_out]``."""

    def __init__(self, n_objects: int, d_in: int, d_out: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_objects, d_in, d_out))
        self.bias = nn.Parameter(torch.empty(n_objects, d_out)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place, as :class:`torch.nn.Linear` does."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        self.weight.uniform_(-bound, bound)
        if self.bias is not None:
            self.bias.uniform_(-bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by each object's weights."""
        y = torch.einsum("bki,kio->bko", x, self.weight)
        return y if self.bias is None else y + self.bias


class ObjectCapsules(nn.Module):
    """Decode a vector of each object into its pose, its presence, and votes for its parts.

    OV is the object's pose. OP is the part's pose in the object: numbers that are learned and the same in each image
    (static), and what the image adds (dynamic). Only what a whole object shares is left to the pose.

    Args:
        n_objects: K.
        n_parts: M, votes of each object.
        d_in: size of the vectors.
        d_code: numbers that each object is squeezed into.
        hidden: width of both hidden layers.
        noise: while training, presences' logits get uniform noise of ± this.
        rigid: objects are turned, scaled and shifted alone: neither sheared nor stretched, and nothing is dynamic.
        initial_presence: of each object, when all weights of presences are 0.
        presence_gain: factor on the initial weights of presences. A large one makes presences differ between images.

    The dynamic numbers start at 0. Random ones would have a large loss, and its gradient would shrink the code that
    presences are read from, too.

    Source: Kosiorek et al. 2019, section 2.3 and its code.
    """

    def __init__(
        self,
        n_objects: int,
        n_parts: int,
        d_in: int,
        *,
        d_code: int,
        hidden: int,
        noise: float,
        rigid: bool = False,
        initial_presence: float = 0.5,
        presence_gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.n_parts, self.noise, self.rigid = n_parts, noise, rigid
        self.initial_presence, self.presence_gain = initial_presence, presence_gain
        self.read, self.squeeze = PerObject(n_objects, d_in, hidden), PerObject(n_objects, hidden, d_code)
        self.unfold = PerObject(n_objects, d_code, hidden)
        self.last = PerObject(n_objects, hidden, (2 if rigid else 8) * n_parts + 7, bias=False)
        self.static = nn.Parameter(torch.empty(n_objects, n_parts, 6))
        self.bias = nn.Parameter(torch.empty(n_objects, 2 * n_parts + 7))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the initial values anew, in place."""
        for module in self.modules():
            if isinstance(module, PerObject):
                module.reset_parameters()
        nn.init.normal_(self.static, std=0.2)
        nn.init.zeros_(self.bias)
        self.bias[:, _POSE] = math.log(self.initial_presence / (1 - self.initial_presence))
        if not self.rigid:
            n_dynamic = _POSE * self.n_parts
            self.last.weight[..., :n_dynamic] = 0
            self.last.weight[..., n_dynamic + _POSE] *= self.presence_gain

    def forward(self, x: Tensor) -> Predictions:
        """Predict parts from vectors ``[B, K, d_in]``."""
        code = self.squeeze(self.read(x).relu())
        x = self.last(self.unfold(code).relu())
        n = self.n_parts
        if self.rigid:
            dynamic = torch.zeros_like(self.static).expand(x.shape[0], -1, -1, -1)
        else:
            dynamic, x = x.split((6 * n, 2 * n + 7), dim=2)
            dynamic = dynamic.unflatten(2, (n, 6))
        pose, presence, vote_presence, scale = (x + self.bias).split((6, 1, n, n), dim=2)
        pose, presence = geometric_transform(pose, self.rigid), self._presence(presence)
        votes = pose.unsqueeze(2) @ geometric_transform(self.static + dynamic)
        scale = F.softplus(scale + _SCALE_SHIFT) + _LEAST_SCALE
        return Predictions(pose, presence.squeeze(2), votes, presence * self._presence(vote_presence), scale, dynamic)

    def _presence(self, logits: Tensor) -> Tensor:
        return noisy_sigmoid(logits, self.noise if self.training else 0.0)


def noisy_sigmoid(logits: Tensor, noise: float) -> Tensor:
    """Turn logits into presences, with uniform noise of ± this on the logits: those between 0 and 1 become unstable."""
    return (logits + noise * (2 * torch.rand_like(logits) - 1) if noise else logits).sigmoid()


def geometric_transform(numbers: Tensor, similar: bool = False) -> Tensor:
    """Make affine matrices ``[..., 3, 3]`` from six numbers ``[..., 6]``: two scales, an angle, shear and two shifts.

    Scales are σ(·) + 0.01, shear and shifts tanh(5 ·), and the angle counts turns. Lengths are in half images. Where
    they are to be ``similar``, the second scale is the first, and there is no shear.

    Source: the code of Kosiorek et al. 2019.
    """
    scale, angle = numbers[..., :2].sigmoid() + 0.01, 2 * math.pi * numbers[..., 2]
    shear_and_shift = (5 * numbers[..., 3:]).tanh()
    if similar:
        scale = scale[..., :1].expand_as(scale)
        shear_and_shift = shear_and_shift * constant((0.0, 1.0, 1.0), numbers)
    return affine_matrix(AffineParts(angle, scale, shear_and_shift[..., 0], shear_and_shift[..., 1:]))
