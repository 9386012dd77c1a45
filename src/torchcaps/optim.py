"""Muon: momentum whose every direction is made equally strong, for convolutions and capsules; Adam for the rest.

Adam scales every number of a gradient by itself. The gradient of a wide layer has a few strong directions, which all of
its numbers share, and Adam's steps are mostly along those. Muon brings all singular values of the momentum near 1, so
that the weak directions are learned as fast as the strong ones.

torch's own Muon (since 2.9) takes matrices alone. Which matrix a layer's weight is, only the layer knows.

Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; the scale of its steps is that of
Liu et al. 2025, "Muon is scalable for LLM training", section 2.2, with which Adam's learning rates carry over.
"""

# Operations on several tensors at once, ``torch._foreach_…``, have no other name; torch documents them.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchcaps.checks import as_number, check_flag, check_number, check_positive, check_two
from torchcaps.layers import MatrixPrimaryCaps, PrimaryCaps
from torchcaps.layers.base import RoutedLayer
from torchcaps.ops.precision import at_least_float32, without_autocast
from torchcaps.ops.product import product

__all__ = ["Muon", "groups"]

_MOMENTUM = 0.95
#: Root mean square of a step at a learning rate of 1: about that of Adam's (Liu et al. 2025).
_RMS = 0.2
#: Where no gradient comes any more, as in a dead unit, momentum falls on and on, and processors are many times slower
#: at numbers below 1.2e-38. So momentum below this is none …
_LEAST = 1e-30
#: … and what is this small beside the largest of its matrix has no part in products. Nothing of it would be seen in the
#: step: all passes together make a direction at most 500 times as strong.
_REMNANT = 1e-10
#: Of the polynomial that brings singular values near 1, and how often it is applied (Jordan et al. 2024).
_QUINTIC, _TIMES = (3.4445, -4.7750, 2.0315), 5


class Layout(NamedTuple):
    """How a weight is a matrix.

    Attributes:
        rows: its first so many axes are the matrix's rows, the others its columns …
        swapped: … after its second and third have changed places.
    """

    rows: int
    swapped: bool = False

    def view(self, weight: Tensor) -> Tensor:
        """Return the weight with its axes in this order, in the same memory."""
        return weight.transpose(1, 2) if self.swapped else weight


_LAYOUTS: tuple[tuple[type[nn.Module], Layout], ...] = (
    (nn.Conv2d, Layout(1)),  # [C', C, K, K]
    (MatrixPrimaryCaps, Layout(1)),  # the same
    (PrimaryCaps, Layout(3)),  # [K, K, C, T·D]
    (RoutedLayer, Layout(2, swapped=True)),  # [I, J, d_in, d_out]
)


def layouts(model: nn.Module) -> dict[nn.Parameter, Layout]:
    """Return the weights that Muon steps: those of two-dimensional convolutions and of layers of capsules.

    Not those of linear layers: a decoder's only regularises, and on a CPU orthogonal steps of matrices as large as its
    would take longer than all else. Nor those of convolutions in groups, each of which is a matrix of its own. Those
    that are frozen are among them: they may be trained later.
    """
    found: dict[nn.Parameter, Layout] = {}
    for layer in model.modules():
        layout = next((layout for kind, layout in _LAYOUTS if isinstance(layer, kind)), None)
        weight = dict(layer.named_parameters(recurse=False)).get("weight")
        grouped = isinstance(layer, nn.Conv2d) and layer.groups > 1
        # A routing of one's own may have weights of another shape.
        fits = weight is not None and weight.dim() == 4 and not grouped
        if layout is not None and weight is not None and fits:
            found[weight] = layout
    return found


def is_weight(name: str) -> bool:
    """Return whether a parameter of this name is decayed: weights, recurrent, parametrised and pruned ones too."""
    return any(part.startswith("weight") for part in name.split("."))


def groups(model: nn.Module, weight_decay: float | None = None) -> list[dict[str, Any]]:
    """Split a model's parameters for :class:`Muon`, in groups of one layout.

    Args:
        model: with convolutions or capsules.
        weight_decay: of all parameters that ``is_weight`` is true of, as :class:`Muon` has it; None takes what that
            is given. Other parameters have none.

    Raises:
        ValueError: a model with neither, or none that is trained, which has nothing to step by Muon; a weight decay
            out of range.

    Example:
        >>> from torchcaps import build
        >>> optimizer = Muon(groups(build("capsnet_small", (1, 28, 28), 10)), lr=3e-3)
        >>> len(optimizer.param_groups) > 1
        True
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model must be a torch.nn.Module, got a {type(model).__name__}")
    if weight_decay is not None:
        weight_decay = as_number("weight_decay", weight_decay, 0)
    known, found = layouts(model), dict[tuple[Layout, float | None], list[nn.Parameter]]()
    if not any(weight.requires_grad for weight in known):
        raise ValueError(
            "model must have convolutions or capsules that are trained, for Muon to train; got one without"
        )
    for name, parameter in model.named_parameters():
        kind = known.get(parameter, Layout(0)), weight_decay if is_weight(name) else 0.0
        found.setdefault(kind, []).append(parameter)
    return [
        {"params": params, **of._asdict()} | ({} if decay is None else {"weight_decay": decay})
        for (of, decay), params in found.items()
    ]


class Muon(torch.optim.Optimizer):
    """Steps convolutions and capsules by Muon, all other parameters by Adam.

    Args:
        params: :func:`groups` of a model, or groups of your own: ``rows`` and ``swapped``, as of ``Layout``, say
            how the weights of a group are matrices; ``rows = 0`` is Adam's.
        lr: learning rate, of both; Adam's carry over.
        betas: Adam's. (Muon's momentum is 0.95, Nesterov's.)
        eps: Adam's.
        weight_decay: factor of ½‖w‖² in the loss, of groups that have none of their own: it is added to the gradient,
            of both. (Liu et al. shrink the weight beside the step instead.)
        capturable: count steps on the device and never read from there, so that a step can be captured in a CUDA graph,
            after a first one that makes the state. A learning rate that is to change is then a tensor there, which is
            changed in place.

    Raises:
        ValueError: no groups of parameters, none that Muon trains, or a number out of range.

    Example:
        >>> from torchcaps.models import CapsNet
        >>> from torchcaps.optim import Muon, groups
        >>> optimizer = Muon(groups(CapsNet()), lr=3e-3)
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        capturable: bool = False,
    ) -> None:
        check_positive("lr", lr)
        check_positive("eps", eps)
        check_flag("capturable", capturable)
        check_two("betas", betas)
        betas = as_number("betas", betas[0]), as_number("betas", betas[1])
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers from 0 up to, but not, 1; got {betas}")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "capturable": capturable}
        try:
            super().__init__(params, defaults | Layout(0)._asdict())
        except (TypeError, ValueError) as error:  # torch names no argument
            raise ValueError(f"params must be groups of parameters, as torchcaps.optim.groups makes: {error}") from None
        for group in self.param_groups:
            check_number("weight_decay", group["weight_decay"], 0)
        if not any(group["rows"] for group in self.param_groups):
            raise ValueError("params must have groups with rows, as torchcaps.optim.groups(model) has; got none")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step; ``closure``, if given, computes the loss anew, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights: list[Tensor] = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            gradients: list[Tensor] = [weight.grad for weight in weights]  # type: ignore[misc]
            if group["weight_decay"]:
                gradients = list(torch._foreach_add(gradients, weights, alpha=group["weight_decay"]))
            (self._turn if group["rows"] else self._scale)(weights, gradients, group)
        return loss

    def _turn(self, weights: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Jordan et al. 2024, algorithm 2, with Nesterov's momentum."""
        layout, lr = Layout(group["rows"], group["swapped"]), self._rate(group)
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
        views = map(layout.view, torch._foreach_lerp(gradients, _without_least(momenta), _MOMENTUM))
        shapes, matrices = [], []
        for view in views:
            shapes.append(view.shape)
            matrices.append(view.reshape(math.prod(view.shape[: layout.rows]), -1))
        for weight, shape, step in zip(weights, shapes, orthogonalized_each(matrices), strict=True):
            by, place = lr * (_RMS * math.sqrt(max(step.shape))), layout.view(weight)
            if isinstance(by, Tensor):
                place.sub_((step * by).reshape(shape))
            else:
                place.sub_(step.reshape(shape), alpha=by)

    def _scale(self, weights: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> None:
        """Kingma, Ba 2015, algorithm 1."""
        beta1, beta2 = group["betas"]
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] |= {"step": 0, "mean": torch.zeros_like(weight), "square": torch.zeros_like(weight)}
        means, squares = ([self.state[weight][name] for weight in weights] for name in ("mean", "square"))
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        done = [self._count(weight) for weight in weights]
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, [corrected**0.5 for corrected in _corrections(beta2, done)])
        torch._foreach_add_(roots, group["eps"])
        by = [-self._rate(group) / corrected for corrected in _corrections(beta1, done)]
        if isinstance(by[0], Tensor):
            torch._foreach_div_(roots, by)
            by = [1.0] * len(roots)
        torch._foreach_addcdiv_(weights, _without_least(means), roots, by)

    @property
    def _capturable(self) -> bool:
        """Return the setting it was made with, whatever the groups of a loaded state say."""
        return bool(self.defaults["capturable"])

    def _count(self, weight: Tensor) -> Any:
        """Return the number of this step: Python's, or the one beside the weight where it is counted there."""
        state = self.state[weight]
        if not self._capturable:
            state["step"] = int(state["step"]) + 1
        elif isinstance(state["step"], Tensor) and state["step"].device == weight.device:
            state["step"] += 1
        else:  # at first, or loaded from elsewhere
            state["step"] = torch.full((), float(state["step"]) + 1, dtype=torch.float32, device=weight.device)
        return state["step"]

    def _rate(self, group: dict[str, Any]) -> Any:
        """Return the learning rate, which is read only where nothing is to be captured."""
        return group["lr"] if self._capturable else float(group["lr"])


def _corrections(beta: float, done: list[Any]) -> Any:
    """Return 1 − βᵗ for each of several numbers of steps t."""
    if not isinstance(done[0], Tensor):
        return [1 - beta**step for step in done]
    # In float32 a power of β near 1 would leave few digits of the difference.
    found = torch._foreach_mul(done, math.log(beta) if beta else -math.inf)
    torch._foreach_expm1_(found)
    torch._foreach_neg_(found)
    return found


def _without_least(momenta: list[Tensor]) -> list[Tensor]:
    """Momenta, in place, with zero for what is no more than a remnant."""
    return [torch.hardshrink(momentum, _LEAST, out=momentum) for momentum in momenta]


def orthogonalized_each(matrices: Sequence[Tensor]) -> list[Tensor]:
    """:func:`orthogonalized` of several: those of one shape, dtype and device together."""
    alike, found = dict[Any, list[int]](), list(matrices)
    for k, matrix in enumerate(matrices):
        alike.setdefault((matrix.shape, matrix.dtype, matrix.device), []).append(k)
    for places in alike.values():
        together = matrices[places[0]] if len(places) == 1 else torch.stack([matrices[k] for k in places])
        steps = orthogonalized(together)
        for k, step in zip(places, [steps] if len(places) == 1 else steps.unbind(), strict=True):
            found[k] = step
    return found


def orthogonalized(matrix: Tensor) -> Tensor:
    """Bring the singular values of a matrix near 1: to about 0.7 … 1.2, where they were not minute.

    Every pass of the quintic is ``X ← X·P(XᵀX)``; here the passes are put together on the small side, ``X·ΠP``, so that
    the long one is gone through twice, not ten times. That takes float32 at least, whatever the matrix has: rounded to
    bfloat16 the product of the passes would run away.

    Args:
        matrix: ``[..., n, m]``.
    """
    if matrix.shape[-2] < matrix.shape[-1]:
        return orthogonalized(matrix.mT).mT
    with without_autocast(matrix):
        x = at_least_float32(matrix)
        x = x / x.abs().amax(dim=(-2, -1), keepdim=True).clamp_min(1e-30)  # squares neither overflow nor vanish
        x = F.hardshrink(x, _REMNANT)
        gram = product(x.mT, x)
        norm = gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None].sqrt().clamp_min(1e-15)
        gram = gram / norm**2  # no singular value is larger than the norm
        total = once = _quintic(gram)
        for _ in range(_TIMES - 1):
            gram = product(product(once, gram), once)
            once = _quintic(gram)
            total = product(total, once)
        return product(x, total / norm).to(matrix.dtype)


def _quintic(gram: Tensor) -> Tensor:
    """Return what a pass multiplies by: aI + bG + cG²."""
    a, b, c = _QUINTIC
    product = torch.addmm if gram.dim() == 2 else torch.baddbmm
    made = product(gram, gram, gram, beta=b, alpha=c)
    made.diagonal(dim1=-2, dim2=-1).add_(a)
    return made
