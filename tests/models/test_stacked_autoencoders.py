"""Stacked capsule auto-encoders: parameters, symmetries, where gradients stop, and training on a few sets of points."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchcaps.models import ConstellationAutoencoder, StackedCapsuleAutoencoder, scae, scae_small
from torchcaps.models.baselines import count_parameters
from torchcaps.models.object_capsules import ObjectCapsules, geometric_transform
from torchcaps.models.part_capsules import Parts, TemplateDecoder
from torchcaps.models.set_transformer import SetTransformer
from torchcaps.models.sparsity import entropy, mutual_information, posterior_sparsity, prior_sparsity
from torchcaps.types import Capsules, StackedOutput

K, M, N = 32, 40, 11 * 11

#: Of the published MNIST settings: M = 40 parts of 16 features, K = 32 objects. A bias each, unless said otherwise.
PUBLISHED = {
    "parts.convs": (9 * 1 * 128 + 128) + 3 * (9 * 128 * 128 + 128),
    "parts.numbers": (128 + 1) * M * (6 + 1 + 16),
    "parts.attention": (128 + 1) * M,
    # Templates and alpha channels, the colours' two layers, and the background with its logit.
    "decoder": 2 * M * N + (16 * 32 + 32) + (32 + 1) + 1 + 1,
    "encoder.read": (6 + 1 + 16 + N + 1) * 16,
    # Queries, keys, values and what follows them; two layers; two normalizations.
    "encoder.blocks": 3 * (4 * (16 * 16 + 16) + (16 * 32 + 32) + (32 * 16 + 16) + 2 * 2 * 16),
    "encoder.widen": (16 + 1) * 256,
    "encoder.pool": 4 * (256 * 256 + 256),
    "objects.read": K * (256 + 1) * 128,
    "objects.squeeze": K * (128 + 1) * 32,
    "objects.unfold": K * (32 + 1) * 128,
    # No bias: dynamic numbers of M parts, six of the object, its presence, M presences and M scales.
    "objects.last": K * 128 * (6 * M + 6 + 1 + M + M),
}


def test_has_the_parameters_of_the_published_settings() -> None:
    model = scae()
    assert {name: count_parameters(model.get_submodule(name)) for name in PUBLISHED} == PUBLISHED
    rest = K * 256 + K * M * 6 + K * (6 + 1 + M + M)  # seeds, static relations, biases
    assert count_parameters(model) == sum(PUBLISHED.values()) + rest == 3_532_627
    assert count_parameters(scae_small()) < 800_000


def small(**options: Any) -> StackedCapsuleAutoencoder:
    torch.manual_seed(0)
    sizes = {"n_parts": 5, "n_objects": 3, "n_features": 4, "template": 7, "channels": 8, "width": 6, "n_layers": 1}
    return StackedCapsuleAutoencoder((2, 24, 27), **{**sizes, "d_features": 8, "d_code": 4, "hidden": 8, **options})


def test_objects_teach_parts_nothing() -> None:
    model, x = small(), torch.rand(3, 2, 24, 27)
    losses = dict(model(x).losses)
    image = losses.pop("image_likelihood")
    assert set(losses) == {
        *("part_likelihood", "dynamic", "prior_within", "prior_between", "posterior_within", "posterior_between")
    }
    torch.stack(list(losses.values())).sum().backward(retain_graph=True)
    reached = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert reached == {"encoder", "objects"}
    model.zero_grad()
    image.backward()
    assert {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None} == {"parts", "decoder"}


def test_every_parameter_learns() -> None:
    model = small()
    model(torch.rand(3, 2, 24, 27)).loss.backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert still in ([], ["encoder.pool.key.bias"]) or all(name.endswith("key.bias") for name in still)


def test_outputs_have_their_shapes_and_ranges() -> None:
    output = small().eval()(torch.rand(4, 2, 24, 27))
    assert isinstance(output, StackedOutput) and output.images is not None and output.objects.coupling is not None
    assert output.images.shape == (4, 2, 24, 27)
    assert output.parts.pose.shape == (4, 5, 3, 3) and output.parts.activation.shape == (4, 5)
    assert output.objects.pose.shape == (4, 3, 3, 3) and output.prior.shape == output.posterior.shape == (4, 3)
    assert output.objects.coupling.shape == (4, 5, 3)
    assert bool((output.objects.coupling.sum(dim=2) <= 1 + 1e-6).all()) and bool((output.prior <= 1).all())
    torch.testing.assert_close(output.loss, torch.stack([*output.losses.values()]).sum())
    wanted = (output.parts.activation.unsqueeze(2) * output.objects.coupling).sum(dim=1)
    torch.testing.assert_close(output.posterior, wanted)


def test_noise_is_of_training_alone_and_weights_leave_terms_out() -> None:
    model, x = small(prior_weights=(0, 0), posterior_weights=(0, 0), dynamic_weight=0), torch.rand(2, 2, 24, 27)
    assert set(model(x).losses) == {"image_likelihood", "part_likelihood"}
    assert not torch.equal(model(x).prior, model(x).prior)
    model.eval()
    assert torch.equal(model(x).prior, model(x).prior)
    model.train()
    model.parts.noise = model.objects.noise = 0.0
    assert torch.equal(model(x).prior, model(x).prior)


def test_a_template_is_where_its_pose_says() -> None:
    torch.manual_seed(0)
    decoder = TemplateDecoder((1, 12, 12), 1, 2, template=4, scale=0.5).double()
    with torch.no_grad():
        decoder.templates.fill_(3.0)
        decoder.alpha.fill_(20.0)
        decoder.background.fill_(-50.0)
        decoder.colour.weight.zero_()
        decoder.colour.bias.fill_(50.0)
    # 4 pixels of 12 are a third of the image; a shift by a half of its half is 3 pixels to the right.
    pose = torch.tensor([[1 / 3, 0, 0.5], [0, 1 / 3, 0], [0, 0, 1]], dtype=torch.float64)[None, None]
    parts = Parts(Capsules(pose, torch.ones(1, 1).double()), torch.zeros(1, 1, 2).double())
    there = torch.zeros(1, 1, 12, 12).double()
    there[..., 4:8, 7:11] = 1 / (1 + math.exp(-3))
    image, likelihood = decoder(parts, there)
    torch.testing.assert_close(image, there, atol=1e-8, rtol=0)
    # Each pixel is at the mean of a component that is alone there.
    wanted = torch.tensor([-144 * math.log(0.5 * math.sqrt(2 * math.pi))], dtype=torch.float64)
    torch.testing.assert_close(likelihood, wanted)
    absent = decoder(Parts(Capsules(pose, torch.zeros(1, 1).double()), parts.features), there)[0]
    assert absent.detach().abs().max() < 1e-8


def test_absent_parts_and_black_images_give_finite_numbers() -> None:
    model = small()
    with torch.no_grad():
        nn.init.constant_(model.get_parameter("parts.numbers.bias"), -200.0)  # presences and scales of about 0
        model.objects.bias.fill_(-200.0)
    output = model(torch.zeros(2, 2, 24, 27))
    output.loss.backward()
    assert output.parts.activation.detach().max() < 1e-30
    assert bool(output.loss.isfinite())
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())


def test_a_set_has_no_order_and_absent_members_count_nothing() -> None:
    torch.manual_seed(0)
    encoder = SetTransformer(3, 2, 8, width=4, n_layers=2, n_heads=2).double()
    x, presence = torch.randn(2, 6, 3).double(), torch.rand(2, 6).double()
    order = torch.randperm(6)
    torch.testing.assert_close(encoder(x[:, order], presence[:, order]), encoder(x, presence))
    presence[:, 4:] = 0
    moved = torch.cat((x[:, :4], 5 * torch.randn(2, 2, 3).double()), dim=1)
    torch.testing.assert_close(encoder(moved, presence), encoder(x, presence), atol=1e-4, rtol=0)
    assert (encoder(moved, presence + 1) - encoder(x, presence + 1)).detach().abs().max() > 1e-3


def test_transforms_worked_by_hand() -> None:
    # A quarter turn, scales ½ + 0.01, shifts tanh 1 and 0: x goes to y, and y to −x.
    numbers = torch.tensor([0, 0, 0.25, 0, 0.2, 0], dtype=torch.float64)
    wanted = torch.tensor([[0, -0.51, math.tanh(1)], [0.51, 0, 0], [0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(geometric_transform(numbers), wanted)
    uneven = torch.tensor([1.0, -1, 0.1, 0.3, 0, 0], dtype=torch.float64)
    linear = geometric_transform(uneven, similar=True)[:2, :2]
    size = 1 / (1 + math.exp(-1)) + 0.01
    torch.testing.assert_close(linear @ linear.T, size**2 * torch.eye(2).double())


def test_objects_multiply_their_pose_by_their_parts() -> None:
    torch.manual_seed(0)
    objects = ObjectCapsules(3, 2, 5, d_code=4, hidden=6, noise=0).double()
    made = objects(torch.randn(2, 3, 5).double())
    for k in range(3):
        for n in range(2):
            part = geometric_transform(objects.static[k, n] + made.dynamic[:, k, n])
            torch.testing.assert_close(made.votes[:, k, n], made.pose[:, k] @ part)
    assert bool((made.vote_presence <= made.presence.unsqueeze(2)).all()) and bool((made.scale > 0.01).all())


def test_sparsity_worked_by_hand() -> None:
    presence = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    within, between = prior_sparsity(presence, n_present=1.5, n_classes=4)
    assert within.item() == pytest.approx(0.25)  # (½² + ½²) / 2
    assert between.item() == pytest.approx((0.5**2 + 1.5**2) / 2)  # sums 1 and 2 against 2 / 4
    alone, whole = posterior_sparsity(torch.tensor([[3.0, 0.0], [0.0, 2.0]]))
    assert alone.item() == pytest.approx(0, abs=1e-6) and whole.item() == pytest.approx(math.log(2))
    share = torch.zeros(1, 3, requires_grad=True)
    entropy(share).sum().backward()
    assert share.grad is not None and bool(share.grad.isfinite().all())


def constellations(n: int) -> Tensor:
    """Draw n triangles, turned and shifted."""
    generator = torch.Generator().manual_seed(1)
    angle = 2 * math.pi * torch.rand(n, 1, generator=generator) + torch.tensor([0, 2.1, 4.2])
    shift = torch.rand(n, 1, 2, generator=generator) - 0.5
    return shift + 0.3 * torch.stack((angle.cos(), angle.sin()), dim=2)


def test_points_have_no_order_and_absent_ones_may_be_anything() -> None:
    torch.manual_seed(0)
    model = ConstellationAutoencoder(2, 3).double()
    x, order = constellations(4).double(), torch.tensor([2, 0, 1])
    one, other = model(x), model(x[:, order])
    torch.testing.assert_close(other.loss, one.loss)
    assert one.objects.coupling is not None and other.objects.coupling is not None
    torch.testing.assert_close(other.objects.coupling, one.objects.coupling[:, order])
    with_more = torch.cat((x, torch.full((4, 2, 2), math.nan).double()), dim=1)
    mask = torch.tensor([True] * 3 + [False] * 2).expand(4, 5)
    absent = model(with_more, mask)
    torch.testing.assert_close(absent.losses["part_likelihood"], one.losses["part_likelihood"], rtol=1e-4, atol=1e-4)
    absent.loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert model(x, torch.zeros(4, 3, dtype=torch.bool)).loss.isfinite()


def test_training_lowers_the_loss() -> None:
    torch.manual_seed(0)
    model = ConstellationAutoencoder(2, 3, width=16, d_features=16, hidden=16, n_layers=1)
    optimizer, x = torch.optim.Adam(model.parameters(), lr=3e-3), constellations(32)
    losses = []
    for _ in range(60):
        loss = model(x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ConstellationAutoencoder(n_objects=0), "n_objects must be"),
        (lambda: ConstellationAutoencoder(width=10, n_heads=4), "width must be a multiple of n_heads=4, got 10"),
        (lambda: ConstellationAutoencoder(noise=-1), "noise must be"),
        (lambda: ConstellationAutoencoder()(torch.rand(2, 3)), "x must be"),
        (lambda: ConstellationAutoencoder()(torch.rand(2, 3, 2), torch.ones(2, 3)), "mask must be bool"),
        (lambda: scae((1, 22, 40)), r"image_shape must have 23×23 pixels at least, got \(1, 22, 40\)"),
        (lambda: scae(n_parts=0), "n_parts must be"),
        (lambda: scae(prior_weights=3), "prior_weights must be two numbers, .* got 3"),
        (lambda: scae(posterior_weights=(1, -1)), "posterior_weights must be"),
        (lambda: scae(image_scale=0), "image_scale must be positive"),
        (lambda: small()(torch.rand(2, 1, 24, 27)), "x must be"),
    ],
)
def test_what_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_initial_values_are_drawn_anew() -> None:
    for model in (small(), ConstellationAutoencoder()):
        before = {name: p.clone() for name, p in model.named_parameters()}
        assert isinstance(model, StackedCapsuleAutoencoder | ConstellationAutoencoder)
        model.reset_parameters()
        drawn = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        constant = {name for name, p in before.items() if p.numel() and bool((p == p.flatten()[0]).all())}
        assert drawn | constant == set(before) and not drawn & constant
        assert all(isinstance(p, nn.Parameter) for p in model.parameters())


def test_mutual_information_worked_by_hand() -> None:
    # Two images of two objects: ln 2 if each keeps its object in both views, 0 if both images have the same object.
    same, one = torch.eye(2).double(), torch.tensor([[1.0, 0], [1, 0]]).double()
    torch.testing.assert_close(mutual_information(same, 3 * same), torch.tensor(math.log(2)).double())
    torch.testing.assert_close(mutual_information(one, one), torch.tensor(0.0).double())
    # Two images of object 0 first, of which one is of object 1 then.
    first = torch.tensor([[1.0, 0], [1, 0], [0, 1], [0, 1]]).double()
    second = torch.tensor([[1.0, 0], [0, 1], [0, 1], [0, 1]]).double()
    joint = {(0, 0): 1 / 4, (0, 1): 1 / 8, (1, 0): 1 / 8, (1, 1): 1 / 2}  # the mean of both directions
    marginal = (3 / 8, 5 / 8)
    wanted = sum(p * math.log(p / (marginal[i] * marginal[j])) for (i, j), p in joint.items())
    torch.testing.assert_close(mutual_information(first, second), torch.tensor(wanted).double())
    assert mutual_information(torch.rand(64, 10), torch.rand(64, 10)) < 0.1
    assert mutual_information(torch.zeros(0, 3), torch.zeros(0, 3)) == 0


def test_initial_objects_are_rigid_and_their_presences_have_the_gain() -> None:
    x = torch.randn(20, 4, 16).double()
    logits = []
    for gain in (0, 1, 30):
        torch.manual_seed(0)
        made = ObjectCapsules(
            4, 3, 16, d_code=8, hidden=16, noise=0, initial_presence=0.1, presence_gain=gain
        ).double()(x)
        assert not bool(made.dynamic.any())
        logits.append(made.presence.detach().logit() + math.log(9))
    torch.testing.assert_close(logits[0], torch.zeros(20, 4).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(logits[2], 30 * logits[1], atol=1e-5, rtol=0)
    assert bool((logits[1].std(dim=0) > 0).all())


def test_an_mlp_reads_parts_in_their_order() -> None:
    model, x = small(encoder="mlp", width=12, n_layers=2), torch.rand(6, 2, 24, 27)
    output = model(x)
    output.loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert bool(model.encoder.get_parameter("layers.1.weight").grad.any())  # type: ignore[union-attr]
    # 5 parts of 7 + 4 numbers; normalizations but the first have a weight and a bias.
    assert count_parameters(model.encoder) == (55 * 12 + 12) + 24 + (12 * 12 + 12) + 24 + 13 * 3 * 8
    assert model.eval()(x[:1]).prior.shape == (1, 3)
    with pytest.raises(ValueError, match="encoder must be one of set_transformer, mlp; got 'gru'"):
        small(encoder="gru")


def test_the_weight_of_parts_is_their_loss() -> None:
    x = torch.rand(3, 2, 24, 27)
    once, half = (small(part_weight=weight).eval()(x).losses["part_likelihood"] for weight in (1, 0.5))
    torch.testing.assert_close(half, once / 2)


def test_parts_of_another_network_are_refused() -> None:
    model, x = small(), torch.rand(2, 2, 24, 27)
    with pytest.raises(ValueError, match=r"pose must be \[B, 5, 3, 3\], got shape \[2, 4, 3, 3\]"):
        model.explain(small(n_parts=4).parts(x))
    with pytest.raises(ValueError, match=r"features must be \[B, 5, 4\], got shape \[2, 5, 3\]"):
        model.explain(small(n_features=3).parts(x))
