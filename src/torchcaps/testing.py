"""Hold a routing, a layer or a kernel of your own to what the library holds its own to.

:func:`assert_capsule_properties` checks what every capsule layer must have and most public codes lack: images of a
batch do not see each other, black images give finite numbers, derivatives are right. :func:`assert_matches_reference`
compares a fast implementation with a slow one, and allows it the rounding of the slow one::

    assert_capsule_properties(Subject("mine", (7, 5), lambda: DenseCaps(7, 4, 5, 6, routing=MyRouting())))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.testing import assert_close

from torchcaps.checks import check_choice
from torchcaps.ops import Capsules

__all__ = [
    "PROPERTIES",
    "NotApplicable",
    "Subject",
    "assert_capsule_properties",
    "assert_matches_reference",
]

_BATCH = 3
_EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


class NotApplicable(Exception):
    """Say that a property is not one of these capsules, by what they are."""


@dataclass(frozen=True)
class Subject:
    """Describe something that makes capsules, to be checked.

    Attributes:
        name: Shown in messages.
        shape: Of its input, without the batch.
        make: Returns a module from input to :class:`~torchcaps.ops.Capsules`, with freshly drawn parameters.
        lengths: Activations are the lengths of the poses, below 1.
        exact_gradient: Its gradient is the derivative.
        couplings: What the couplings of a lower capsule sum to over the upper ones: "one", "less" (leaky routing), or
            "other" where they do not, or where nothing is routed.
        permutes: Inputs are ``[B, I, …]`` and parameters ``[I, J, …]`` or ``[J, …]``, which may be permuted.
    """

    name: str
    shape: tuple[int, ...]
    make: Callable[[], nn.Module]
    lengths: bool = True
    exact_gradient: bool = True
    couplings: str = "one"
    permutes: bool = False

    def __post_init__(self) -> None:
        check_choice("couplings", self.couplings, ("one", "less", "other"))

    def made(self, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
        """Return the module and a batch for it. Parameters that start at 0 are drawn: there some mistakes hide."""
        module = self.make().to(dtype)
        for parameter in module.parameters():
            if not parameter.detach().any():
                nn.init.normal_(parameter, std=0.1)
        return module, torch.randn(_BATCH, *self.shape, dtype=dtype)


def _loss(routed: Capsules) -> Tensor:
    return routed.pose.square().sum() + routed.activation.sum()


def _assert_finite(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            assert bool(parameter.grad.isfinite().all()), f"the gradient of {name} must be finite"


def rows_do_not_see_each_other(subject: Subject) -> None:
    """Compare each row of a batch with that image alone. Logits shared over a batch break this."""
    module, x = subject.made(torch.float64)
    together = module(x)
    for k in range(len(x)):
        alone = module(x[k : k + 1])
        assert_close(alone.pose[0], together.pose[k], **_EXACT)
        assert_close(alone.activation[0], together.activation[k], **_EXACT)


def batches_may_be_empty_or_of_one(subject: Subject) -> None:
    """Route no image, and one."""
    for n in (0, 1):
        module, x = subject.made()
        whole = module(x)
        routed = module(x[:n].requires_grad_())
        assert routed.pose.shape == (n, *whole.pose.shape[1:])
        assert routed.activation.shape == (n, *whole.activation.shape[1:])
        _loss(routed).backward()
        _assert_finite(module)


def black_images_are_finite(subject: Subject) -> None:
    """Route zeros without biases. A norm without care has no gradient at 0: most public codes give NaN."""
    for dtype in (torch.float32, torch.bfloat16):
        module = subject.make().to(dtype)
        for name, parameter in module.named_parameters():
            if "bias" in name:
                nn.init.zeros_(parameter)
        x = torch.zeros(_BATCH, *subject.shape, dtype=dtype, requires_grad=True)
        routed = module(x)
        _loss(routed).backward()
        assert bool(routed.pose.isfinite().all()) and bool(routed.activation.isfinite().all())
        assert x.grad is not None and bool(x.grad.isfinite().all())
        _assert_finite(module)


def derivatives_are_right(subject: Subject) -> None:
    """Compare gradients with differences, in float64."""
    if not subject.exact_gradient:
        raise NotApplicable("its gradient is not the derivative by definition")
    module, x = subject.made(torch.float64)
    parameters = {name: p.detach() for name, p in module.named_parameters() if "decoder" not in name}

    def function(x: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        routed = torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (x,))
        return routed.pose, routed.activation

    inputs = [value.requires_grad_() for value in (x[:1], *parameters.values())]
    assert gradcheck(function, inputs, fast_mode=sum(v.numel() for v in inputs) > 300)


def strides_do_not_matter(subject: Subject) -> None:
    """Route input that is not contiguous."""
    module, x = subject.made(torch.float64)
    strided = x.transpose(0, -1).contiguous().transpose(0, -1)
    assert_close(module(strided).pose, module(x).pose, **_EXACT)


def default_device_does_not_matter(subject: Subject) -> None:
    """Make constants where the input is, not where ``torch.set_default_device`` says."""
    module, x = subject.made()
    inputs, outcomes = (x.requires_grad_(), *module.parameters()), []
    for device in ("cpu", "meta"):
        with torch.device(device):
            routed = module(x)
            gradients = torch.autograd.grad(_loss(routed), inputs, allow_unused=True)
            outcomes.append((*routed[:2], *(gradient for gradient in gradients if gradient is not None)))
    assert_close(*outcomes, rtol=0, atol=0)


def dtypes_are_kept(subject: Subject) -> None:
    """Return capsules of the dtype of the input."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        module, x = subject.made(dtype)
        routed = module(x)
        assert routed.pose.dtype == routed.activation.dtype == dtype


def autocast_is_near_float32(subject: Subject) -> None:
    """Route under bfloat16 autocast."""
    module, x = subject.made()
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        narrow = module(x)
    wide = module(x)
    assert (narrow.activation.float() - wide.activation).abs().max() < 0.05
    assert (narrow.pose.float() - wide.pose).abs().max() < 0.05
    _loss(narrow).backward()
    _assert_finite(module)


def activations_are_lengths(subject: Subject) -> None:
    """Compare activations with lengths. Squash along another axis, or a softmax of the lengths, breaks this."""
    if not subject.lengths:
        raise NotApplicable("its activations are not lengths")
    module, x = subject.made(torch.float64)
    routed = module(10 * x)
    assert_close(routed.activation, routed.pose.norm(dim=-1))
    assert bool((routed.activation < 1).all())
    assert (routed.activation.flatten(1).sum(dim=1) - 1).abs().max() > 1e-3, "a softmax over the capsules"
    module, x = subject.made(torch.float32)
    activation = module(1e4 * x).activation
    assert bool(((activation >= 0) & (activation <= 1)).all()), "an activation beyond 0 … 1, if by rounding"


def couplings_sum_over_upper_capsules(subject: Subject) -> None:
    """Sum couplings over the upper capsules. A softmax over the lower ones breaks this."""
    if subject.couplings == "other":
        raise NotApplicable("its couplings do not sum to one, or nothing is routed")
    module, x = subject.made(torch.float64)
    coupling = module(x, return_coupling=True).coupling
    total = coupling.sum(dim=-1)
    if subject.couplings == "less":
        assert bool((total < 1).all()) and bool((total > 0).all())
    else:
        assert_close(total, torch.ones_like(total))
    assert (coupling.sum(dim=-2) - 1).abs().max() > 0.1, "the couplings sum to one over the lower capsules"


def order_does_not_matter(subject: Subject) -> None:
    """Permute lower capsules, and upper ones with their parameters."""
    if not subject.permutes:
        raise NotApplicable("its capsules have places, or no parameters of their own")
    module, x = subject.made(torch.float64)
    plain = module(x)
    n_in, n_out = x.shape[1], plain.pose.shape[1]
    lower, upper = torch.randperm(n_in), torch.randperm(n_out)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(value[lower][:, upper] if value.shape[:2] == (n_in, n_out) else value[upper])
    permuted = module(x[:, lower])
    assert_close(permuted.pose, plain.pose[:, upper], **_EXACT)
    assert_close(permuted.activation, plain.activation[:, upper], **_EXACT)


def parameters_exist_and_learn(subject: Subject) -> None:
    """See all parameters before the first call, and a gradient in each after it."""
    module, x = subject.made()
    before = [name for name, _ in module.named_parameters()]
    _loss(module(x.requires_grad_())).backward()
    assert [name for name, _ in module.named_parameters()] == before
    for name, parameter in module.named_parameters():
        if "decoder" not in name:
            assert parameter.grad is not None and bool(parameter.grad.any()), f"{name} must get a gradient"


#: Every property, by its name.
PROPERTIES: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        rows_do_not_see_each_other,
        batches_may_be_empty_or_of_one,
        black_images_are_finite,
        derivatives_are_right,
        strides_do_not_matter,
        default_device_does_not_matter,
        dtypes_are_kept,
        autocast_is_near_float32,
        activations_are_lengths,
        couplings_sum_over_upper_capsules,
        order_does_not_matter,
        parameters_exist_and_learn,
    )
}


def assert_capsule_properties(subject: Subject) -> list[str]:
    """Check all of :data:`PROPERTIES` that apply.

    Args:
        subject: What makes the capsules.

    Returns:
        The names of the properties that were checked.

    Raises:
        AssertionError: Naming the first property that does not hold, and how.

    Example:
        >>> from torchcaps import DenseCaps
        >>> subject = Subject("mine", (7, 5), lambda: DenseCaps(7, 4, 5, 6))
        >>> "derivatives_are_right" in assert_capsule_properties(subject)
        True
    """
    checked = []
    for name, check in PROPERTIES.items():
        try:
            check(subject)
        except NotApplicable:
            continue
        except Exception as error:
            raise AssertionError(f"{subject.name}: {name} does not hold: {error}") from error
        checked.append(name)
    return checked


Inputs = Mapping[str, Tensor | None]
#: Units in the last place below which an error is not compared.
_FLOOR = 4


def assert_matches_reference(
    function: Callable[[Inputs], Sequence[Tensor]],
    reference: Callable[[Inputs], Sequence[Tensor]],
    inputs: Inputs,
    *,
    neighbours: int = 7,
    device: str = "cpu",
) -> None:
    """Hold an implementation to its reference, results and the gradients of all inputs.

    Against the reference in float64, each error may be twice that of the reference in the dtype of the inputs, or a few
    units in the last place of the largest number, whichever is more. One rounding may be small by luck. So the
    reference's error is the largest of several: on these inputs, and on neighbours of them that differ in the last
    place, as do the gradients that come from above.

    Args:
        function: From inputs to results, on ``device``.
        reference: The same, slowly; on the CPU, in any floating dtype.
        inputs: Tensors on the CPU by name; None where one is left out.
        neighbours: How many neighbours of the inputs the reference is run on.
        device: Where ``function`` works.

    Raises:
        AssertionError: Naming the result or gradient that is too far off, or of another dtype or shape.

    Example:
        >>> import torch
        >>> from torchcaps.ops import dynamic_routing
        >>> def route(backend):
        ...     return lambda given: dynamic_routing(given["u"], given["weight"], backend=backend)[:2]
        >>> inputs = {"u": torch.rand(2, 6, 8), "weight": torch.rand(6, 3, 8, 16)}
        >>> assert_matches_reference(route("auto"), route("reference"), inputs)
    """
    exact, ours = _outcome(reference, _double(inputs)), _outcome(function, inputs, device)
    allowed = dict.fromkeys(exact, 0.0)
    for k in range(1 + neighbours):
        near = _neighbour(inputs, seed=k) if k else inputs
        theirs, true = _outcome(reference, near, neighbour=k), _outcome(reference, _double(near), neighbour=k)
        for name, x in theirs.items():
            assert bool(x.isfinite().all()), f"{name}: the reference is not finite"
            assert ours[name].dtype == x.dtype and ours[name].shape == x.shape, name
            allowed[name] = max(allowed[name], _distance(x, true[name]))
    assert ours.keys() == exact.keys()
    for name, wanted in exact.items():
        limits = torch.finfo(ours[name].dtype)
        ulp = limits.eps * max(_largest(wanted), limits.smallest_normal)
        error = _distance(ours[name], wanted)
        assert error <= max(2 * allowed[name], _FLOOR * ulp), (
            f"{name}: error {error:.3g}, the reference's {allowed[name]:.3g}, ulp {ulp:.3g}"
        )


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _distance(x: Tensor, exact: Tensor) -> float:
    return _largest(x.double() - exact)


def _double(inputs: Inputs) -> Inputs:
    return {k: None if x is None else x.double() for k, x in inputs.items()}


def _neighbour(inputs: Inputs, seed: int) -> Inputs:
    """Return every number as it is, or one unit in the last place more or less."""
    generator = torch.Generator().manual_seed(seed)

    def moved(x: Tensor) -> Tensor:
        step = torch.randint(-1, 2, x.shape, generator=generator) * torch.finfo(x.dtype).eps
        return (x.double() * (1 + step)).to(x.dtype)

    return {k: None if x is None else moved(x) for k, x in inputs.items()}


def _outcome(
    function: Callable[[Inputs], Sequence[Tensor]], inputs: Inputs, device: str = "cpu", neighbour: int = 0
) -> dict[str, Tensor]:
    """Return the results, and the gradients of one fixed weighting of them all, or of a neighbour of it."""
    leaves = {k: x.detach().requires_grad_() for k, x in inputs.items() if x is not None}
    moved = {k: x.to(device) for k, x in leaves.items()}
    results = [x.cpu() for x in function({**inputs, **moved})]
    generator = torch.Generator().manual_seed(1)
    # The weights are numbers that every dtype can hold.
    weights: Inputs = {str(k): torch.randn(x.shape, generator=generator).bfloat16() for k, x in enumerate(results)}
    weights = _neighbour(weights, neighbour) if neighbour else weights
    sources = [
        (x, w.to(x.dtype)) for x, w in zip(results, weights.values(), strict=True) if w is not None and x.requires_grad
    ]
    gradients = torch.autograd.grad(
        [x for x, _ in sources],
        list(leaves.values()),
        [w for _, w in sources],
        allow_unused=True,
        materialize_grads=True,
    )
    named = {f"result {k}": x.detach() for k, x in enumerate(results)}
    return named | {f"gradient of {k}": x for k, x in zip(leaves, gradients, strict=True)}
