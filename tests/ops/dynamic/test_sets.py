"""Sets of any length: masks, matrices that lower capsules share, and initial logits of each image."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.backends import DEVICES, backends
from tests.ops.dynamic.test_routing import slow_routing, votes_2x2
from torchcaps.ops import Capsules, dynamic_routing, dynamic_routing_from_votes
from torchcaps.testing import assert_matches_reference

DOUBLE = torch.float64
B, I, J, D_IN, D_OUT = 3, 6, 4, 3, 5  # noqa: E741
#: The second image has no set of its own length at the end, the third has one lower capsule.
THERE = torch.tensor([[True] * 6, [True, False, True, True, False, False], [False] * 5 + [True]])
NAN = math.nan


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE)


def tensors(rows: int = I, logits: tuple[int, ...] | None = (I, J)) -> dict[str, Tensor]:
    given = {"u": drawn(B, I, D_IN), "weight": drawn(rows, J, D_IN, D_OUT), "bias": drawn(J, D_OUT)}
    return given if logits is None else given | {"initial_logits": drawn(*logits)}


def test_a_masked_vote_worked_by_hand() -> None:
    """The two votes of the first example, and a third that is not there: 1.6 of agreement, as there."""
    votes = torch.cat((votes_2x2(), torch.full((1, 1, 2, 2), NAN, dtype=DOUBLE)), dim=1)
    mask = torch.tensor([[True, True, False]])
    got = dynamic_routing_from_votes(votes, n_iters=2, mask=mask, return_coupling=True)
    won = 1 / (1 + math.exp(-1.6))
    wanted = torch.tensor([[[1 - won, won], [1 - won, won], [0, 0]]], dtype=DOUBLE)
    torch.testing.assert_close(got.coupling, wanted)
    s = 4 * won
    torch.testing.assert_close(got.pose[0, 1], torch.tensor([0.0, s * s / (1 + s * s)], dtype=DOUBLE))


def test_drawn_logits_on_one_matrix_worked_by_hand() -> None:
    """MIND with numbers for poses: u = (1, 2), one matrix (1), logits (ln 2, 0) and (0, ln 3)."""
    u, weight = torch.tensor([[[1.0], [2.0]]], dtype=DOUBLE), torch.ones(1, 1, 1, 1, dtype=DOUBLE)
    logits = torch.tensor([[math.log(2), 0.0], [0.0, math.log(3)]], dtype=DOUBLE)
    # c = (2/3, 1/3), (1/4, 3/4); s = 2/3 + 1/2 and 1/3 + 3/2; squash maps 7/6 to 49/85 and 11/6 to 121/157.
    for given in (logits, logits[None]):
        got = dynamic_routing(u, weight, initial_logits=given, n_iters=1, return_coupling=True)
        torch.testing.assert_close(got.coupling, torch.tensor([[[2 / 3, 1 / 3], [1 / 4, 3 / 4]]], dtype=DOUBLE))
        torch.testing.assert_close(got.pose, torch.tensor([[[49 / 85], [121 / 157]]], dtype=DOUBLE))
        # Agreement moves the logits of the first by 0.576471 and 0.770701, those of the second by twice as much.
        got = dynamic_routing(u, weight, initial_logits=given, n_iters=2, return_coupling=True).coupling
        assert float(got[0, 0, 0]) == pytest.approx(1 / (1 + math.exp(0.770701 - 0.576471 - math.log(2))), abs=1e-6)
        assert float(got[0, 1, 0]) == pytest.approx(1 / (1 + math.exp(2 * (0.770701 - 0.576471)) * 3), abs=1e-6)


def test_with_equal_logits_all_interests_are_equal() -> None:
    """Why MIND draws them."""
    u, weight, logits = drawn(B, I, D_IN), drawn(1, 1, D_IN, D_OUT), drawn(B, I, J)
    equal = dynamic_routing(u, weight, initial_logits=torch.zeros(I, J)).pose
    torch.testing.assert_close(equal, equal[:, :1].expand(-1, J, -1))
    pose = dynamic_routing(u, weight, initial_logits=logits).pose
    assert float((pose - pose[:, :1])[:, 1:].norm(dim=-1).min()) > 1e-3


@pytest.mark.parametrize("logits", [None, (I, J), (1, J), (B, I, J)], ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["", "shared"])
@pytest.mark.parametrize("leaky", [False, True], ids=["", "leaky"])
@backends
def test_agrees_with_the_slow_loop(backend: str, leaky: bool, shared: bool, logits: tuple[int, ...] | None) -> None:
    """A loop in Python numbers, over the lower capsules that are there."""
    if logits == (B, I, J) and backend != "reference":
        backend = "auto"  # which takes the reference, or sums of poses
    given = tensors(1 if shared else I, logits)
    got = dynamic_routing(**given, mask=THERE, leaky=leaky, backend=backend, return_coupling=True)
    for k in range(B):
        kept = THERE[k].nonzero().flatten().tolist()
        weight = given["weight"].expand(I, -1, -1, -1)[kept].tolist()
        b0 = given["initial_logits"].expand(B, I, J)[k, kept].tolist() if logits else None
        v, c = slow_routing(given["u"][k, kept].tolist(), weight, 3, given["bias"].tolist(), b0, leaky)
        torch.testing.assert_close(got.pose[k], torch.tensor(v, dtype=DOUBLE), rtol=1e-10, atol=1e-10)
        wanted = torch.zeros(I, J, dtype=DOUBLE)
        wanted[kept] = torch.tensor(c, dtype=DOUBLE)
        torch.testing.assert_close(got.coupling[k], wanted, rtol=1e-10, atol=1e-10)


def outcome(given: dict[str, Tensor], **options: Any) -> tuple[Capsules, dict[str, Tensor]]:
    """Route, and return the gradients of one fixed weighting of all results."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
    routed = dynamic_routing(**leaves, return_coupling=True, **options)
    loss = (routed.pose * torch.arange(1.0, 1 + D_OUT)).sum() + routed.activation.square().sum()
    return routed, dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("backprop", ["full", "last"])
@pytest.mark.parametrize("shared", [False, True], ids=["", "shared"])
@backends
def test_masked_ones_may_be_dropped_in_any_order(backend: str, shared: bool, backprop: str) -> None:
    """Results and every gradient are those of the set without them; masked ones get none."""
    given = tensors(1 if shared else I)
    options: dict[str, Any] = {"backend": backend, "backprop": backprop}
    mask = THERE[1].expand(B, I)
    routed, gradients = outcome(given, mask=mask, **options)
    kept = torch.tensor([3, 0, 2])  # those that are there, in another order
    few = {name: x[kept] if len(x) == I else x for name, x in given.items()} | {"u": given["u"][:, kept]}
    wanted, of_few = outcome(few, **options)
    torch.testing.assert_close(routed[:2], wanted[:2], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(routed.coupling[:, kept], wanted.coupling, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients["u"][:, kept], of_few["u"], rtol=1e-10, atol=1e-12)
    for name in ("weight", "initial_logits", "bias"):
        got, absent = gradients[name], ~mask[0]
        if len(got) == I:
            assert not got[absent].any()
            got = got[kept]
        torch.testing.assert_close(got, of_few[name], rtol=1e-10, atol=1e-12)
    assert not gradients["u"][~mask].any() and not routed.coupling[~mask].any()


@pytest.mark.parametrize("garbage", [NAN, math.inf, 1e300])
@pytest.mark.parametrize("shared", [False, True], ids=["", "shared"])
@backends
def test_masked_poses_may_hold_anything(backend: str, shared: bool, garbage: float) -> None:
    """Bit for bit, forward and backward."""
    given = tensors(1 if shared else I)
    spoiled = given | {"u": given["u"].masked_fill(~THERE.unsqueeze(2), garbage)}
    one, two = (outcome(x, mask=THERE, backend=backend) for x in (given, spoiled))
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_masked_logits_of_an_image_may_hold_anything() -> None:
    for shared in (False, True):
        given = tensors(1 if shared else I, (B, I, J))
        spoiled = given | {"initial_logits": given["initial_logits"].masked_fill(~THERE.unsqueeze(2), NAN)}
        one, two = (outcome(x, mask=THERE) for x in (given, spoiled))
        torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize("shared", [False, True], ids=["", "shared"])
@backends
def test_an_empty_set_gives_zero(backend: str, shared: bool) -> None:
    """Beside sets that are not empty: without a bias, of finite gradients. So does one of no capsules at all."""
    given = tensors(1 if shared else I)
    given.pop("bias")
    mask = torch.tensor([[True] * I, [False] * I, [True] * I])
    routed, gradients = outcome(given, mask=mask, backend=backend)
    assert not routed.pose[1].any() and not routed.activation[1].any() and not routed.coupling[1].any()
    assert all(bool(x.isfinite().all()) for x in gradients.values()) and not gradients["u"][1].any()
    assert bool(routed.pose[::2].all())
    none = {"u": given["u"][:, :0], "weight": given["weight"][: 1 if shared else 0]}
    assert not dynamic_routing(**none, mask=mask[:, :0], backend=backend).pose.any()


def _paired(backend: str, **options: Any) -> Callable[[Any], Sequence[Tensor]]:
    return lambda given: [
        x for x in dynamic_routing(**given, **options, backend=backend, return_coupling=True) if x is not None
    ]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in Triton's interpreter
@pytest.mark.parametrize("columns", [1, 7], ids=["pairs", "lower"])
@pytest.mark.parametrize("options", [{}, {"leaky": True, "backprop": "last"}, {"n_iters": 1}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@backends
def test_shared_matrices_obey_the_pairing_rule(
    backend: str, dtype: torch.dtype, options: dict[str, Any], columns: int
) -> None:
    """Sums of poses ("auto") and kernels on the same matrix, many times, against the paper's procedure."""
    n, n_in, n_out, d_in, d_out = 5, 37, 7, 6, 13
    inputs = {
        "u": torch.randn(n, n_in, d_in).to(dtype),
        "weight": (torch.randn(1, columns, d_in, d_out) / (d_in * n_in) ** 0.5 * 3).to(dtype),
        "bias": torch.randn(n_out, d_out).to(dtype),
        "initial_logits": torch.randn(n_in, n_out).to(dtype),
    }
    mask = torch.rand(n, n_in) < 0.7
    backend = "auto" if backend == "reference" else backend
    ours, reference = (_paired(name, mask=mask, **options) for name in (backend, "reference"))
    assert_matches_reference(ours, reference, inputs, device=DEVICES.get(backend, "cpu"))


@pytest.mark.parametrize("shape", [(37, 7), (1, 7), (5, 37, 7)], ids=str)
def test_logits_of_any_form_obey_the_pairing_rule(shape: tuple[int, ...]) -> None:
    inputs = {
        "u": torch.randn(5, 37, 6),
        "weight": torch.randn(1, 7, 6, 13) / 5,
        "initial_logits": torch.randn(shape),
    }
    assert_matches_reference(_paired("auto"), _paired("reference"), inputs)


class _Largest(TorchDispatchMode):
    """Note how many numbers the largest tensor has that is made."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, tuple | list) else (made,):
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.element_size())
        return made


def test_shared_matrices_make_no_votes() -> None:
    """Nothing is larger than the couplings, forward and backward; votes are 16 times that."""
    u, weight = torch.randn(2, 100, 8, requires_grad=True), torch.randn(1, 10, 8, 16, requires_grad=True)
    numbers = {}
    for backend in ("auto", "reference"):
        with _Largest() as largest:
            dynamic_routing(u, weight, backend=backend).pose.sum().backward()
        numbers[backend] = largest.numbers
    assert numbers["auto"] == 2 * 100 * 10 and numbers["reference"] >= 2 * 100 * 10 * 16


@backends
def test_logits_of_each_image_are_for_no_kernel(backend: str) -> None:
    given = tensors(logits=(B, I, J))
    if backend == "reference":
        torch.testing.assert_close(dynamic_routing(**given), dynamic_routing(**given, backend=backend))
        return
    with pytest.raises(ValueError, match=rf"initial_logits must be \[I, J\] with backend='{backend}', got one for"):
        dynamic_routing(**given, backend=backend)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (THERE.float(), "mask must be bool, true for lower capsules that are there, got torch.float32"),
        (THERE.long(), "mask must be bool, true for lower capsules that are there, got torch.int64"),
        (THERE[:, :5], r"mask must be \[B, I\] = \[3, 6\], got shape \[3, 5\]"),
        (THERE[0], r"mask must be \[B, I\] = \[3, 6\], got shape \[6\]"),
        (THERE.T, r"mask must be \[B, I\] = \[3, 6\], got shape \[6, 3\]"),
        (THERE.tolist(), "mask must be a torch.Tensor, got a list"),
        (THERE.to("meta"), "mask must be on cpu as u is"),
    ],
)
def test_bad_masks(mask: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dynamic_routing(**tensors(), mask=mask)
    with pytest.raises(ValueError, match=message.replace("as u", "as votes")):
        dynamic_routing_from_votes(drawn(B, I, J, D_OUT), mask=mask)


def test_bad_shared_matrices_and_logits() -> None:
    given = tensors()
    with pytest.raises(ValueError, match=r"weight must be \[I=6 or 1, J, d_in, d_out\] as u says, got shape \[2, 4"):
        dynamic_routing(given["u"], given["weight"][:2])
    for logits in (drawn(2, I, J), drawn(J), drawn(B, 1, J), drawn(I, 1)):
        with pytest.raises(ValueError, match=r"initial_logits must be \[I, J\] = \[6, 4\], \[1, J\] or \[B, I, J\]"):
            dynamic_routing(**given | {"initial_logits": logits})
