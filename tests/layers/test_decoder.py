"""The decoder and its mask."""

from __future__ import annotations

import pytest
import torch

from torchcaps.layers import Decoder
from torchcaps.models import HiddenCaps, build
from torchcaps.ops import Capsules


def test_only_the_target_capsule_is_seen() -> None:
    decoder, pose = Decoder(4, 3, (2, 5, 6), (7,)), torch.randn(2, 4, 3)
    target = torch.tensor([1, 3])
    image = decoder(pose, target)
    assert image.shape == (2, 2, 5, 6) and bool(((image > 0) & (image < 1)).all())
    others = pose.clone()
    others[0, [0, 2, 3]] += 1
    others[1, [0, 1, 2]] += 1
    torch.testing.assert_close(decoder(others, target), image)
    others[0, 1] += 1
    assert not torch.allclose(decoder(others, target)[0], image[0])


def test_the_longest_capsule_in_test() -> None:
    decoder, pose = Decoder(3, 2, (1, 4, 4), (5,)), torch.tensor([[[0.1, 0.0], [0.0, 0.9], [0.3, 0.3]]])
    torch.testing.assert_close(decoder(pose), decoder(pose, torch.tensor([1])))


def test_each_class_from_its_own_capsule() -> None:
    decoder, pose = Decoder(4, 3, (1, 5, 6), (7,)), torch.randn(2, 4, 3)
    classes = torch.tensor([[1, 3], [0, 2]])
    images = decoder.each(pose, classes)
    assert images.shape == (2, 2, 1, 5, 6)
    for k in range(2):
        torch.testing.assert_close(images[:, k], decoder(pose, classes[:, k]))


def test_several_classes_in_one_image() -> None:
    decoder, pose = Decoder(3, 2, (1, 4, 4), (5,)), torch.randn(1, 3, 2)
    both = decoder(pose, torch.tensor([[1, 0, 1]]))
    pose[0, 1] += 5
    torch.testing.assert_close(decoder(pose, torch.tensor([[1, 0, 1]])), both)


def test_classes_that_are_none() -> None:
    decoder, pose = Decoder(3, 2, (1, 4, 4), (5,)), torch.randn(2, 3, 2)
    with pytest.raises(ValueError, match=r"classes must be int64, got torch.int32"):
        decoder.each(pose, torch.zeros(2, 1, dtype=torch.int32))
    with pytest.raises(ValueError, match="classes must hold classes 0 … 2, got 0 … 3"):
        decoder.each(pose, torch.tensor([[0], [3]]))
    with pytest.raises(ValueError, match="hidden must be the widths of layers, got 5"):
        Decoder(3, 2, (1, 4, 4), 5)  # type: ignore[arg-type]


def test_layer_by_layer() -> None:
    decoder, pose, target = Decoder(4, 3, (1, 5, 6), (7, 9)), torch.randn(2, 4, 3), torch.tensor([1, 3])
    seen = torch.zeros(2, 12)
    for k in range(2):
        seen[k, 3 * int(target[k]) : 3 * int(target[k]) + 3] = pose[k, target[k]]
    *hidden, last = decoder.layers
    for layer in hidden:
        seen = (seen @ layer.weight.T + layer.bias).clamp_min(0)
    wanted = 1 / (1 + torch.exp(-(seen @ last.weight.T + last.bias)))
    torch.testing.assert_close(decoder(pose, target).flatten(1), wanted)


def test_the_image_teaches_the_target_alone() -> None:
    """The slope of its sum, worked out layer by layer: σ' = σ (1 − σ), and a ReLU's that is 1 where it is not 0."""
    decoder, pose, target = (
        Decoder(4, 3, (1, 5, 6), (7,)),
        torch.randn(2, 4, 3, requires_grad=True),
        torch.tensor([1, 3]),
    )
    image = decoder(pose, target)
    (got,) = torch.autograd.grad(image.sum(), pose)
    first, last = decoder.layers
    wanted = torch.zeros(2, 4, 3)
    with torch.no_grad():
        for k, j in enumerate(target.tolist()):
            own = first.weight[:, 3 * j : 3 * j + 3]
            painted = image[k].flatten()
            wanted[k, j] = ((painted * (1 - painted)) @ last.weight * (own @ pose[k, j] > 0)) @ own
    torch.testing.assert_close(got, wanted)


def test_initial_weights_keep_the_mean_square() -> None:
    """Of what passes the ReLUs, or an image would hardly be taught by its capsule, or at random."""
    x, (*hidden, last) = torch.randn(200, 160), Decoder(10, 16, (1, 28, 28)).layers
    for layer in hidden:
        x = layer(x).relu()
        assert x.square().mean().item() == pytest.approx(1.0, abs=0.15)
    assert last(x).square().mean().item() == pytest.approx(2.0, abs=0.3)


def test_matrix_capsules_are_chosen_by_their_activation() -> None:
    """Their poses' length says nothing."""
    decoder, pose = Decoder(3, 16, (1, 4, 4), (5,)), torch.randn(2, 3, 4, 4)
    capsules = Capsules(pose, torch.tensor([[0.1, 0.9, 0.2], [0.8, 0.1, 0.3]]))
    chosen = torch.tensor([1, 0])
    torch.testing.assert_close(decoder(capsules), decoder(pose.flatten(2), chosen))
    torch.testing.assert_close(decoder(capsules, torch.tensor([2, 2])), decoder(pose.flatten(2), torch.tensor([2, 2])))
    torch.testing.assert_close(decoder.each(capsules, chosen[:, None])[:, 0], decoder(capsules))


@pytest.mark.parametrize("shape", [(1, 3), (2, 5), (2,)])
def test_activations_that_do_not_fit_the_poses_are_refused(shape: tuple[int, ...]) -> None:
    """The choice of one image's row would else be every image's."""
    capsules = Capsules(torch.randn(2, 3, 16), torch.rand(shape))
    with pytest.raises(ValueError, match="activation must be "):
        Decoder(3, 16, (1, 4, 4), (5,))(capsules)


def test_images_that_cannot_be_made() -> None:
    for shape in ((28, 28), (1, 0, 28)):
        with pytest.raises(ValueError, match=r"image_shape must be \(channels, height, width\), got"):
            Decoder(10, 16, shape)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"capsules must be \[B, J=3, D=16\], got shape \[2, 4, 16\]"):
        Decoder(3, 16, (1, 4, 4))(torch.zeros(2, 4, 4, 4))


def test_poses_are_divided_by_their_scale_which_is_saved_with_the_weights() -> None:
    plain, divided = Decoder(4, 3, (1, 5, 6), (7,)), Decoder(4, 3, (1, 5, 6), (7,), pose_scale=0.01)
    assert "scale" not in plain.state_dict() and plain.pose_scale == 1.0
    divided.load_state_dict(plain.state_dict())  # trained without: it decodes as it did
    pose, target = torch.randn(2, 4, 3), torch.tensor([1, 3])
    torch.testing.assert_close(divided(pose, target), plain(pose, target), rtol=0, atol=0)
    divided.reset_parameters()
    plain.load_state_dict({name: x for name, x in divided.state_dict().items() if name != "scale"})
    torch.testing.assert_close(divided(0.01 * pose, target), plain(pose, target))
    other = Decoder(4, 3, (1, 5, 6), (7,), pose_scale=0.5)
    other.load_state_dict(divided.state_dict())
    torch.testing.assert_close(other(pose, target), divided(pose, target), rtol=0, atol=0)
    assert float(other.pose_scale) == pytest.approx(0.01)
    with pytest.raises(ValueError, match="pose_scale must be positive, got 0"):
        Decoder(4, 3, (1, 5, 6), (7,), pose_scale=0)


@torch.no_grad()
@pytest.mark.parametrize("n_hidden", [0, 2])
def test_above_em_layers_different_images_give_different_pictures(n_hidden: int) -> None:
    """Poses shrink from layer to layer, so that undivided ones are hardly seen in the pictures."""
    options = {"routing": "em", "pose": "vector", "channels": 32, "n_types": 8, "decoder": (64,)}
    hidden = (HiddenCaps(n_types=8, d_out=16, kernel_size=3, stride=1),) * n_hidden
    model = build("capsnet", (1, 28, 28), 10, hidden=hidden, d_primary=16, **options).eval()
    images, target = torch.rand(8, 1, 28, 28) ** 4, torch.zeros(8, dtype=torch.int64)
    pose = model(images).capsules[-1].pose
    assert float(pose[:, 0].std(dim=0).mean()) < 0.05
    pictures = model.decoder(pose, target)
    undivided = Decoder(10, 16, (1, 28, 28), (64,))
    undivided.load_state_dict({name: x for name, x in model.decoder.state_dict().items() if name != "scale"})
    found, before = (float(x.std(dim=0).mean()) for x in (pictures, undivided(pose, target)))
    assert found > 0.02 and found > 20 * before


def test_a_shared_decoder_knows_the_capsule_and_not_its_class() -> None:
    torch.manual_seed(0)
    decoder = Decoder(3, 4, (1, 5, 6), (7,), shared=True)
    assert [layer.in_features for layer in decoder.layers] == [4, 7]
    pose = torch.randn(2, 3, 4)
    images = decoder(pose, torch.tensor([2, 0]))
    moved = pose.roll(1, dims=1)  # each pose belongs to the next class now
    torch.testing.assert_close(decoder(moved, torch.tensor([0, 1])), images)
    others = pose.clone()
    others[0, :2], others[1, 1:] = 9.0, 9.0
    torch.testing.assert_close(decoder(others, torch.tensor([2, 0])), images)
    torch.testing.assert_close(decoder.each(pose, torch.tensor([[2], [0]]))[:, 0], images)
    first, last = decoder.layers
    wanted = last(first(torch.stack((pose[0, 2], pose[1, 0]))).relu()).sigmoid().view(2, 1, 5, 6)
    torch.testing.assert_close(images, wanted)
    assert (decoder(moved, torch.tensor([2, 0])) - images).abs().max() > 1e-3
    with pytest.raises(ValueError, match="shared must be True or False, got 'yes'"):
        Decoder(3, 4, (1, 5, 6), shared="yes")  # type: ignore[arg-type]
