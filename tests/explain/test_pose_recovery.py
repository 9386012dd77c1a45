"""Transformations recovered from known poses, and reconstructions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchcaps.data.transformed import Limits
from torchcaps.explain import (
    affine_parameters,
    generative_units,
    part_reconstructions,
    recover_transformation,
    regression_fit,
    transformation_consistency,
    transformation_sweep,
    unwrap_rotation,
)
from torchcaps.models import TransformingAutoencoder, build
from torchcaps.ops import Capsules, transform_pose


class Knowing(TransformingAutoencoder):
    """Capsules with given poses: image k is a number, the place of its poses in a list."""

    def __init__(self, pose: Tensor, presence: Tensor) -> None:
        kind = "translation" if pose.dim() == 3 else "affine"
        super().__init__((1, 4, 4), n_capsules=pose.shape[1], n_recognition=1, n_generation=1, pose=kind)
        self.known, self.presence = pose, presence

    def encode(self, x: Tensor) -> Capsules:
        k = x[:, 0, 0, 0].long()
        return Capsules(self.known[k], self.presence[k])


def numbered(*k: int) -> Tensor:
    return torch.tensor(k, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)


def drawn(n: int) -> Tensor:
    return Limits(3, 25, 0.3, 0.3).draw(n, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [(2,), (3, 3)])
def test_poses_that_follow_give_the_transformation_back(shape: tuple[int, ...]) -> None:
    matrix = drawn(5)
    if shape == (2,):
        matrix[:, :2, :2] = torch.eye(2)
    pose = 0.3 * torch.randn(5, 6, *shape) + (torch.eye(3) if shape == (3, 3) else 0)
    model = Knowing(torch.cat((pose, transform_pose(pose, matrix))), torch.rand(10, 6))
    found = recover_transformation(model, numbered(0, 1, 2, 3, 4), numbered(5, 6, 7, 8, 9))
    torch.testing.assert_close(found.together, matrix, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.each[:, 2], matrix, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(affine_parameters(found.together), affine_parameters(matrix), atol=1e-2, rtol=1e-2)


def test_absent_capsules_have_no_say() -> None:
    pose = torch.zeros(2, 3, 2)
    pose[1] = torch.tensor([[1.0, 2.0], [1.0, 2.0], [50.0, 50.0]])
    presence = torch.tensor([[0.9, 0.6, 0.9], [0.8, 0.4, 0.0]])
    found = recover_transformation(Knowing(pose, presence), numbered(0), numbered(1))
    assert found.together[0, :2, 2].tolist() == [1.0, 2.0]
    assert found.active.tolist() == [[True, False, False]]
    torch.testing.assert_close(found.presence, torch.tensor([[0.8, 0.4, 0.0]]))


def test_absent_matrices_have_no_say() -> None:
    """Of five capsules four follow the transformation; the last does not, and is gone in the second image."""
    done = torch.tensor([[0.9, -0.2, 1.0], [0.3, 1.1, -2.0], [0.0, 0.0, 1.0]])
    poses = torch.eye(3) + 0.3 * torch.randn(1, 5, 3, 3)
    poses[:, :, 2] = torch.tensor([0.0, 0.0, 1.0])
    followed = done @ poses
    followed[:, 4] = torch.eye(3)
    presence = torch.ones(2, 5)
    presence[1, 4] = 0.0
    found = recover_transformation(Knowing(torch.cat((poses, followed)), presence), numbered(0), numbered(1))
    torch.testing.assert_close(found.together[0], done, atol=1e-4, rtol=1e-4)


def test_quantities_by_hand() -> None:
    # Turned by 90° from x towards y, twice as large along x, shifted by (3, −1).
    matrix = torch.tensor([[0.0, -1.0, 3.0], [2.0, 0.0, -1.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(affine_parameters(matrix), torch.tensor([90.0, 2.0, 1.0, 0.0, 3.0, -1.0]))


def test_rotations_are_compared_the_short_way_round() -> None:
    true = torch.tensor([[179.0, 1, 1, 0, 0, 0], [-170.0, 1, 1, 0, 0, 0], [30.0, 1, 1, 0, 200, 0]])
    got = torch.tensor([[-179.0, 1, 1, 0, 0, 0], [175.0, 1, 1, 0, 0, 0], [50.0, 1, 1, 0, -200, 0]])
    wanted = got.clone()
    wanted[:, 0] = torch.tensor([181.0, -185.0, 50.0])
    torch.testing.assert_close(unwrap_rotation(true, got), wanted)
    each = got.unsqueeze(1).expand(3, 4, 6)
    torch.testing.assert_close(unwrap_rotation(true.unsqueeze(1), each), wanted.unsqueeze(1).expand(3, 4, 6))


def test_a_line_by_hand() -> None:
    true = torch.tensor([-1.0, 0.0, 1.0])
    assert regression_fit(true, true) == (1.0, 1.0)
    # Half as much: slope ½, and a quarter of the variance is missed.
    assert regression_fit(true, true / 2) == (0.5, 0.75)
    # A line through shifted numbers would fit, but they are wrong.
    assert regression_fit(true, true + 1) == (1.0, 1 - 3 / 2)
    with pytest.raises(ValueError, match="true must hold different numbers, got 3 equal ones"):
        regression_fit(torch.ones(3), true)
    with pytest.raises(ValueError, match="got 3 equal ones"):  # whose mean is rounded to another
        regression_fit(torch.full((3,), 0.1, dtype=torch.float64), true)


@pytest.mark.parametrize("name", ["affine_autoencoder", "local_autoencoder", "template_autoencoder"])
def test_capsules_painted_alone_add_up(name: str) -> None:
    model, image = build(name, (1, 28, 28), 10), torch.rand(1, 28, 28)
    model.background.data.uniform_(-1, 1)
    alone = part_reconstructions(model, image)
    assert alone.shape == (model.n_capsules, 1, 28, 28)
    torch.testing.assert_close(alone.sum(dim=0) + model.background, model(image[None]).images[0], atol=1e-4, rtol=1e-4)


def test_generative_units_are_what_is_painted_when_they_are_on() -> None:
    model = build("affine_autoencoder", (1, 12, 12), 10, n_capsules=3, n_generation=5)
    units = generative_units(model)
    assert units.shape == (3, 5, 1, 12, 12)
    on = torch.zeros(1, 1, 15)
    on[0, 0, 2 * 5 + 3] = 1.0  # the fourth unit of the third capsule
    torch.testing.assert_close(model.windows.put(model.output(on))[0], units[2, 3])
    assert generative_units(build("template_autoencoder", (1, 28, 28), 10)).shape == (16, 1, 1, 11, 11)


def test_told_compares_with_the_same_model_that_ignores() -> None:
    model, x = build("affine_autoencoder", (1, 12, 12), 10), torch.rand(2, 2, 1, 12, 12)
    matrix = drawn(2)
    found = transformation_consistency(model, x[0], matrix, x[1])
    there = model(x[1]).images
    wanted = (model(x[0], matrix).images - there), (model(x[0]).images - there)
    for got, difference in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, difference.square().sum(dim=(1, 2, 3)))


def test_a_sweep_has_the_image_itself_where_nothing_is_done() -> None:
    model, image = build("template_autoencoder", (1, 28, 28), 10), torch.rand(1, 28, 28)
    true, reconstructed = transformation_sweep(model, image, torch.stack((torch.eye(3), drawn(1)[0])))
    torch.testing.assert_close(true[0], image)
    torch.testing.assert_close(reconstructed[0], model(image[None]).images[0])
    assert (reconstructed[1] - reconstructed[0]).abs().max() > 1e-4


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match="model must be a transforming auto-encoder, got a CapsNet"):
        recover_transformation(
            build("capsnet_small", (1, 28, 28), 10), torch.rand(1, 1, 28, 28), torch.rand(1, 1, 28, 28)
        )


def test_a_compiled_auto_encoder_is_the_network_within() -> None:
    model, x = build("affine_autoencoder", (1, 12, 12), 1), torch.rand(2, 1, 12, 12)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(
        recover_transformation(compiled, x, x), recover_transformation(model, x, x), equal_nan=True
    )  # type: ignore[arg-type]
