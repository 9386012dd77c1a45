"""Auto-encoders of capsules: sizes, what a transformation does to them, and what they refuse."""

from __future__ import annotations

import pytest
import torch

from torchcaps.models import build
from torchcaps.models.baselines import count_parameters
from torchcaps.models.windows import Windows
from torchcaps.ops import transform_pose

NAMES = (
    "translation_autoencoder",
    "affine_autoencoder",
    "parts_autoencoder",
    "local_autoencoder",
    "template_autoencoder",
)


@pytest.mark.parametrize("name", NAMES)
def test_poses_are_in_pixels_whatever_autocast_says(name: str) -> None:
    """No pose is rounded to the bfloat16 of what was read: of this size it would be off by an eighth of a pixel."""
    model, x, found = build(name, (1, 96, 96)).eval(), torch.rand(4, 1, 96, 96), []

    def exactly(module: torch.nn.Module, given: object, numbers: torch.Tensor) -> torch.Tensor:
        found.append((3 * numbers).bfloat16())
        return found[0].float()

    hook = model.read.register_forward_hook(exactly)
    exact = model(x).capsules.pose
    hook.remove()
    model.read.register_forward_hook(lambda module, given, numbers: found[0])
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(x).capsules.pose
    torch.testing.assert_close(rounded, exact, rtol=1e-5, atol=1e-4)


def shifts(*by: tuple[float, float]) -> torch.Tensor:
    matrix = torch.eye(3).repeat(len(by), 1, 1)
    matrix[:, :2, 2] = torch.tensor(by)
    return matrix


@pytest.mark.parametrize("name", ["affine_autoencoder", "local_autoencoder"])
def test_generation_units_take_what_was_read(name: str) -> None:
    """Poses are in pixels of the image, and back in the capsule's own unit about its own centre."""
    model = build(name, (1, 20, 17))
    numbers = torch.randn(2, model.n_capsules, 9)
    taken = model._numbers_of(model._pose_of(numbers))
    torch.testing.assert_close(taken, numbers + torch.eye(3).flatten(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_capsules_are_those_of_the_image_that_is_seen(name: str) -> None:
    """And what is painted is theirs, transformed: a loss of consistency would else transform them twice."""
    model, x, by = build(name, (1, 20, 24)), torch.rand(2, 1, 20, 24), shifts((2, 0), (0, 3))
    found, told = model.encode(x), model(x, by)
    torch.testing.assert_close(told.capsules.pose, found.pose)
    painted = model.decode(transform_pose(found.pose, by), found.activation)
    torch.testing.assert_close(told.images, painted)


def test_the_papers_networks_have_their_units() -> None:
    # 30·(784+1)·10 see; 30·(10+1)·3 say x, y, p; 30·(2+1)·20 take x, y; 30·20·784 paint; 784 ground
    translation = 235_500 + 990 + 1_800 + 470_400 + 784
    assert count_parameters(build("translation_autoencoder", (1, 28, 28), 10)) == translation
    affine = 25 * 785 * 40 + 25 * 41 * 10 + 25 * 10 * 40 + 25 * 40 * 784 + 784
    assert count_parameters(build("affine_autoencoder", (1, 28, 28), 10)) == affine


def test_capsules_of_points_unit_by_unit() -> None:
    """Sigmoids see the image, say (x, y, presence), take (x, y) and paint, times the presence."""
    model, x = (
        build("translation_autoencoder", (1, 6, 5), n_capsules=2, n_recognition=3, n_generation=4),
        torch.rand(2, 1, 6, 5),
    )
    found = model.encode(x)
    painted = torch.zeros(2, 30)
    units = torch.sigmoid(x.flatten(1) @ model.recognition.weight[0] + model.recognition.bias[0]).view(2, 2, 3)
    for j in range(2):
        numbers = units[:, j] @ model.read.weight[j] + model.read.bias[j]
        presence = torch.sigmoid(numbers[:, 2:])
        torch.testing.assert_close(found.pose[:, j], numbers[:, :2] * 5 / 4)
        torch.testing.assert_close(found.activation[:, j], presence[:, 0])
        seen = torch.sigmoid(numbers[:, :2] @ model.generation.weight[j] + model.generation.bias[j])
        painted += (seen * presence) @ model.output.weight[0, 4 * j : 4 * j + 4]
    torch.testing.assert_close(model(x).images.flatten(1), painted + model.background.flatten())


@pytest.mark.parametrize("name", NAMES)
def test_the_identity_changes_nothing_and_a_shift_does(name: str) -> None:
    model, x = build(name, (1, 28, 28), 10), torch.rand(3, 1, 28, 28)
    plain, identity = model(x), model(x, shifts((0, 0), (0, 0), (0, 0)))
    torch.testing.assert_close(plain.images, identity.images)
    assert plain.images.shape == x.shape
    pose, presence, _ = plain.capsules
    assert presence.shape == (3, model.n_capsules)
    assert presence.min() > 0 and presence.max() < 1
    assert pose.shape == (3, model.n_capsules, *((2,) if "translation" in name else (3, 3)))
    moved = model(x, shifts((0, 0), (2, 0), (0, 3))).images
    torch.testing.assert_close(moved[0], plain.images[0])
    assert all((moved[k] - plain.images[k]).abs().max() > 1e-4 for k in (1, 2))


@pytest.mark.parametrize("name", NAMES)
def test_an_image_does_not_depend_on_its_batch_mates_and_everything_learns(name: str) -> None:
    model, x = build(name, (1, 20, 24), 10), torch.rand(3, 1, 20, 24)
    matrix = shifts((1, 0), (0, 1), (2, 2))
    torch.testing.assert_close(model(x, matrix).images[1:2], model(x[1:2], matrix[1:2]).images)
    model(x, matrix).images.square().sum().backward()
    for parameter, value in model.named_parameters():
        assert value.grad is not None and value.grad.isfinite().all() and value.grad.abs().sum() > 0, parameter


def test_matrices_of_parts_have_an_inverse_whatever_is_read() -> None:
    model = build("parts_autoencoder", (1, 28, 28), 10)
    with torch.no_grad():
        model.read.weight.normal_(std=30.0)
    matrix = model.encode(torch.rand(4, 1, 28, 28)).pose
    # the area of a unit is unit² · sx · sy, each scale within ½ … 2
    area = torch.linalg.det(matrix) / model.unit**2
    assert area.min() > 0.249 and area.max() < 4.01
    assert area.std() > 0.5
    assert torch.equal(matrix[..., 2, :], torch.tensor((0.0, 0.0, 1.0)).expand(4, 25, 3))


def test_local_capsules_see_their_window_and_paint_about_it() -> None:
    model = build("local_autoencoder", (1, 20, 17), 10, field=5, patch=7, stride=6, n_capsules=2)
    assert (model.windows.n, model.n_capsules) == (9, 18)
    centres = model.windows.centres
    # 17 rows of 20 are filled, the first of them row 1; all 17 columns
    assert centres[0] == (-6.0, -6.5) and centres[1] == (0.0, -6.5) and centres[3] == (-6.0, -0.5)
    x = torch.rand(1, 1, 20, 17, requires_grad=True)
    found = model.encode(x)
    (seen,) = torch.autograd.grad(found.pose[:, 2:4].sum(), x)  # the two of the second window
    rows, columns = (seen.abs().sum(dim=(0, 1, axis)).nonzero().flatten().tolist() for axis in (3, 2))
    assert (rows, columns) == (list(range(1, 6)), list(range(6, 11)))
    presence = torch.zeros(1, 18)
    presence[0, 3] = 1.0
    painted = model.decode(found.pose, presence)[0, 0].detach()
    rows, columns = (painted.abs().sum(dim=axis).nonzero().flatten().tolist() for axis in (1, 0))
    assert (rows, columns) == (list(range(7)), list(range(5, 12)))
    presence = torch.zeros(1, 18)
    presence[0, -1] = 1.0
    painted = model.decode(found.pose, presence)[0, 0].detach()
    rows, columns = (painted.abs().sum(dim=axis).nonzero().flatten().tolist() for axis in (1, 0))
    assert (rows, columns) == (list(range(12, 19)), list(range(11, 17)))  # cut off at the image's edge


def test_one_window_smaller_than_what_it_paints() -> None:
    windows = Windows((1, 28, 28), field=26, stride=3, patch=28)
    assert windows.n == 1 and windows.centres == [(0.0, 0.0)]
    patch = torch.rand(2, 1, 28 * 28)
    torch.testing.assert_close(windows.put(patch), patch.view(2, 1, 28, 28))
    image = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(windows.take(image).view(2, 26, 26), image[:, 0, 1:27, 1:27])


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_none(name: str) -> None:
    model = build(name, (1, 20, 24), 10)
    painted, capsules = model(torch.zeros(0, 1, 20, 24), torch.zeros(0, 3, 3))[:2]
    assert painted.shape == (0, 1, 20, 24) and len(capsules.pose) == len(capsules.activation) == 0
    painted.sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def test_local_capsules_paint_about_twice_as_far_by_default() -> None:
    model = build("local_autoencoder", (1, 28, 28), 10)
    assert (model.windows.field, model.windows.patch, model.windows.n) == ((11, 11), (21, 21), 36)


def test_local_capsules_begin_near_their_windows() -> None:
    model = build("local_autoencoder", (1, 20, 20), 10, field=5, patch=7, stride=5)
    x, y, w = model.encode(torch.rand(50, 1, 20, 20)).pose[..., 2].mean(dim=0).unbind(-1)
    assert (torch.stack((x / w, y / w), dim=1) - torch.tensor(model.windows.centres)).abs().max() < 2.5


def test_a_template_in_its_own_size_is_painted_pixel_by_pixel() -> None:
    model = build("template_autoencoder", (1, 12, 10), 10, n_capsules=2, template=4)
    pose = torch.diag(torch.tensor([2.0, 2.0, 1.0])).repeat(1, 2, 1, 1)  # edges are 2 pixels from the middle
    painted = model.decode(pose, torch.tensor([[0.5, 0.0]]))
    wanted = torch.zeros(12, 10)
    wanted[4:8, 3:7] = 0.5 * model.templates[0, 0].detach()
    torch.testing.assert_close(painted[0, 0], wanted)
    pose[:, 0, :2, 2] = torch.tensor([2.0, -3.0])
    moved = model.decode(pose, torch.tensor([[0.5, 0.0]]))
    torch.testing.assert_close(moved[0, 0, 1:5, 5:9], wanted[4:8, 3:7])


@pytest.mark.parametrize("most", [1.5, 4.0])
def test_templates_grow_and_shrink_by_most_scale_at_most(most: float) -> None:
    model = build("template_autoencoder", (1, 12, 10), 10, n_capsules=2, template=4, most_scale=most)
    with torch.no_grad():
        model.read.weight.zero_()
        model.read.bias.zero_()
        model.read.bias.view(2, -1)[:, 1:3] = torch.tensor([[30.0, 30.0], [-30.0, -30.0]])  # both scales
        sides = model.encode(torch.rand(1, 1, 12, 10)).pose[0, :, :2, :2].norm(dim=1)
    torch.testing.assert_close(sides, torch.tensor([[2 * most] * 2, [2 / most] * 2]))  # half of the template: 2


def test_a_shifted_answer_of_templates_is_the_shifted_answer() -> None:
    """The generator has no other way: whole pixels move unchanged. With neural units this need not be so."""
    model, x = build("template_autoencoder", (1, 28, 28), 10), torch.rand(2, 1, 28, 28)
    plain, moved = model(x).images, model(x, shifts((3, -2), (3, -2))).images
    torch.testing.assert_close(moved[:, :, 5:20, 8:20], plain[:, :, 7:22, 5:17], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "affine_autoencoder",
            {"pose": "projective"},
            "pose must be one of translation, affine, parts; got ",
        ),
        ("affine_autoencoder", {"n_capsules": 0}, "n_capsules must be an integer of at least 1, got 0"),
        ("local_autoencoder", {"patch": 12}, "patch must be larger than field=11 by an even number, got 12"),
        ("affine_autoencoder", {"patch": 12}, "patch must be None without a field, as the whole image is drawn; got"),
        ("affine_autoencoder", {"stride": 3}, "stride must be None without a field, as the whole image is seen; got 3"),
        ("local_autoencoder", {"field": 30}, "field must be at most 28 in images of 28×28, got 30"),
        ("template_autoencoder", {"most_scale": 1.0}, "most_scale must be above 1 and finite, got 1.0"),
        ("template_autoencoder", {"template": 0}, "template must be an integer of at least 1, got 0"),
    ],
)
def test_bad_options_are_refused_by_name(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, (1, 28, 28), 10, **options)


def test_images_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"x must be images of \[1, 28, 28\], got \[1, 20, 20\]"):
        build("affine_autoencoder", (1, 28, 28), 10)(torch.rand(1, 1, 20, 20))


@pytest.mark.parametrize("name", NAMES)
def test_transformations_that_do_not_fit(name: str) -> None:
    model, x = build(name, (1, 28, 28), 10), torch.rand(2, 1, 28, 28)
    with pytest.raises(ValueError, match=r"transformation must be \[B, (3, 3|2)\].*, got shape \[3, 3\]"):
        model(x, torch.eye(3))
    with pytest.raises(ValueError, match=r"transformation must be \[B, 3, 3\] with B=2 as in x, got shape \[1, 3, 3\]"):
        model(x, torch.eye(3)[None])
    with pytest.raises(ValueError, match=r"transformation must be a torch\.Tensor, got a list"):
        model(x, [0.0, 1.0])


@pytest.mark.parametrize("name", NAMES)
def test_in_bfloat16(name: str) -> None:
    model = build(name, (1, 28, 28), 10).bfloat16()
    painted = model(torch.rand(2, 1, 28, 28).bfloat16(), shifts((0, 0), (1, 2)).bfloat16()).images
    assert painted.dtype == torch.bfloat16 and bool(painted.isfinite().all())


def test_templates_in_bfloat16_lie_where_they_lie_in_float32() -> None:
    """Places are not rounded with the weights: bfloat16 knows pixels to an eighth."""
    model = build("template_autoencoder", (1, 28, 28), 10).bfloat16()
    wide = build("template_autoencoder", (1, 28, 28), 10)
    wide.load_state_dict(model.state_dict())
    with torch.no_grad():
        pose, presence, _ = wide.encode(torch.rand(8, 1, 28, 28))
        exact, found = wide.decode(pose, presence), model.decode(pose, presence.bfloat16())
    rounded = model.decode(pose.bfloat16().float(), presence.bfloat16())
    assert (found.float() - exact).abs().mean() < 0.5 * (rounded.float() - exact).abs().mean()


def test_a_plain_auto_encoder_takes_a_transformation_where_it_cannot_look() -> None:
    model, x, nothing = build("plain_autoencoder", (1, 28, 28), 10), torch.rand(2, 1, 28, 28), shifts((0, 0), (0, 0))
    wanted = model(x, nothing).images
    exported = torch.export.export(model, (x, nothing)).module()
    torch.testing.assert_close(exported(x, nothing).images, wanted)
    each = torch.func.vmap(lambda x, by: model(x[None], by[None]).images[0])(x, nothing)
    torch.testing.assert_close(each, wanted)
    assert model.to("meta")(x.to("meta"), nothing.to("meta")).images.is_meta


def test_templates_train_compiled_whatever_the_batch() -> None:
    """An epoch's last batch is a smaller one."""
    torch.manual_seed(0)
    model = build("template_autoencoder", (1, 12, 10), n_capsules=2, template=5, channels=(2, 3), width=4)
    compiled = torch.compile(model, backend="aot_eager")
    for n in (4, 3, 2):
        x = torch.rand(n, 1, 12, 10)
        found = [torch.autograd.grad(each(x).images.square().sum(), model.templates)[0] for each in (compiled, model)]
        torch.testing.assert_close(*found)


def test_a_plain_auto_encoder_follows_nothing() -> None:
    model, x = build("plain_autoencoder", (1, 28, 28), 10), torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(model(x, shifts((0, 0), (0, 0))).images, model(x).images)
    with pytest.raises(ValueError, match="transformation must be None or identity"):
        model(x, shifts((0, 0), (0, 1)))
