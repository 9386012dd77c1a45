"""What is made small, and what counts as an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from torchcaps.layers import Decoder
from torchcaps.models import ModelOutput, Reconstruction, TransformingAutoencoder, build
from torchcaps.ops import Capsules, margin_loss, reconstruction_loss, spread_loss
from torchcaps.ops.affine import shift_matrix
from torchcaps.training.config import Data, Experiment, Model
from torchcaps.training.examples import Batch
from torchcaps.training.objective import evaluate, judge, total_loss, wrong


def test_wrong_by_hand() -> None:
    scores = torch.tensor([[0.9, 0.5, 0.1], [0.1, 0.2, 0.8], [0.3, 0.2, 0.1]])
    assert wrong(scores, torch.tensor([[0], [2], [1]])).tolist() == [False, False, True]
    # Both digits must be right, in any order.
    assert wrong(scores, torch.tensor([[1, 0], [2, 0], [0, 1]])).tolist() == [False, True, False]


def batch(n_labels: int) -> Batch:
    labels = torch.tensor([[0, 2], [1, 0], [2, 1]])[:, :n_labels]
    return Batch(torch.rand(3, 1, 20, 20), labels, torch.rand(3, n_labels, 1, 20, 20))


def test_validation_has_the_spread_loss_of_the_last_margin() -> None:
    model = build("matrix_capsnet_small", (1, 32, 32), 3, A=4, B=2, C=2, D=2).eval()
    given = Batch(torch.rand(3, 1, 32, 32), torch.tensor([[0], [1], [2]]), torch.rand(3, 1, 1, 32, 32))
    config = Experiment(model=Model("matrix_capsnet_small"), loss="spread")
    with torch.no_grad():
        found, wanted = judge(config, model, [given]), spread_loss(model(given.images).scores, given.labels[:, 0], 0.9)
    assert found["loss"] == pytest.approx(3 * wanted.item(), rel=1e-5)


@pytest.mark.parametrize("n_labels", [1, 2])
def test_capsules_margin_and_reconstruction_of_each_label(n_labels: int) -> None:
    model = build("capsnet_small", (1, 20, 20), 3)
    given = batch(n_labels)
    output = model(given.images)
    wanted = margin_loss(output.scores, F.one_hot(given.labels, 3).sum(dim=1))
    for k in range(n_labels):
        image = model.decoder(output.capsules[-1].pose, given.labels[:, k])
        wanted = wanted + 0.25 * reconstruction_loss(image, given.parts[:, k])
    torch.testing.assert_close(total_loss(Experiment(reconstruction=0.25), model, output, given), wanted)


@pytest.mark.parametrize("n_labels", [1, 2])
def test_the_reconstruction_teaches_decoder_and_capsules(n_labels: int) -> None:
    model, given, pose = torch.nn.Module(), batch(n_labels), torch.randn(3, 3, 4, requires_grad=True)
    model.decoder = Decoder(3, 4, (1, 20, 20), hidden=())
    (layer,) = model.decoder.layers
    loss = total_loss(
        Experiment(reconstruction=0.25), model, ModelOutput(torch.rand(3, 3), (Capsules(pose, pose),)), given
    )
    got = torch.autograd.grad(loss, (pose, layer.weight, layer.bias))
    wanted = [torch.zeros_like(x) for x in got]
    with torch.no_grad():
        for image, labels in enumerate(given.labels.tolist()):
            for k, j in enumerate(labels):
                own = layer.weight[:, 4 * j : 4 * j + 4]
                painted = (own @ pose[image, j] + layer.bias).sigmoid()
                slope = 0.25 * 2 / 3 * (painted - given.parts[image, k].flatten()) * painted * (1 - painted)
                wanted[0][image, j] += slope @ own
                wanted[1][:, 4 * j : 4 * j + 4] += torch.outer(slope, pose[image, j])
                wanted[2] += slope
    torch.testing.assert_close(list(got), wanted)


def test_consistency_draws_both_poses_to_each_other() -> None:
    """Of points p, seen as f after a shift by s: the slope of the mean of |f − p − s|² / unit²."""
    seen, before, shift = (torch.randn(3, 5, 2) for _ in range(3))
    seen.requires_grad_(), before.requires_grad_()
    shift = shift[:, :1]

    class Says(TransformingAutoencoder):
        def encode(self, x: torch.Tensor) -> Capsules:
            return Capsules(seen, torch.ones(3, 5))

    model = Says((1, 20, 20), n_capsules=5, n_recognition=1, n_generation=1, pose="translation")
    given = batch(1)._replace(transformation=shift_matrix(shift[:, 0]))
    output = Reconstruction(given.parts[:, 0], Capsules(before, torch.ones(3, 5)))
    config = Experiment(data=Data(transformed=True), model=Model("transforming_autoencoder"), loss="squared_error",
                        consistency=3.0)  # fmt: skip
    got = torch.autograd.grad(total_loss(config, model, output, given), (seen, before))
    wanted = 3 * 2 * (seen - before - shift).detach() / (3 * 5 * model.unit**2)
    torch.testing.assert_close(got, (wanted, -wanted))


def test_losses_of_narrow_scores_are_computed_wide() -> None:
    scores, model = torch.randn(3, 3).bfloat16(), torch.nn.Identity()
    for n_labels in (1, 2):
        given = batch(n_labels)
        config = Experiment(loss="cross_entropy", data=Data(pairs=n_labels == 2))
        found, wanted = (total_loss(config, model, ModelOutput(each), given) for each in (scores, scores.double()))
        torch.testing.assert_close(found, wanted.float())


def test_cross_entropy() -> None:
    scores, config = torch.randn(3, 3), Experiment(loss="cross_entropy")
    model = torch.nn.Identity()
    one = total_loss(config, model, ModelOutput(scores), batch(1))
    torch.testing.assert_close(one, F.cross_entropy(scores, torch.tensor([0, 1, 2])))
    two = total_loss(replace(config, data=Data(pairs=True)), model, ModelOutput(scores), batch(2))
    present = torch.tensor([[1.0, 0, 1], [1, 1, 0], [0, 1, 1]])
    torch.testing.assert_close(two, F.binary_cross_entropy_with_logits(scores, present) * 3)


def test_spread_loss_grows_its_margin_over_the_run() -> None:
    scores, labels = torch.rand(3, 3), torch.tensor([0, 1, 2])
    for progress, margin in ((0.0, 0.2), (0.5, 0.55), (1.0, 0.9)):
        got = total_loss(
            Experiment(loss="spread"), torch.nn.Identity(), ModelOutput(scores), batch(1), progress=progress
        )
        torch.testing.assert_close(got, spread_loss(scores, labels, margin))
    half_way = total_loss(
        Experiment(loss="spread", margin="sigmoid"), torch.nn.Identity(), ModelOutput(scores), batch(1), progress=0.1
    )
    torch.testing.assert_close(half_way, spread_loss(scores, labels, 0.2 + 0.79 / 2))


def test_evaluate_weighs_images_not_batches() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> ModelOutput:
            return ModelOutput(x.flatten(1)[:, :2])

    def one(rows: list[list[float]]) -> Batch:
        x = torch.tensor(rows)[:, None, None]
        return Batch(x, torch.zeros(len(rows), 1, dtype=torch.int64), x[:, None])

    given = [one([[1.0, 0.0]] * 3), one([[0.0, 1.0]])]
    got = evaluate(replace(Experiment(), loss="margin"), Fixed(), given)
    # No loss for the three; 0.81 + 0.5 · 0.81 for the one (length 0 of the true class, 1 of the other).
    assert got["error"] == 0.25
    assert got["loss"] == pytest.approx((3 * 0.0 + 0.81 + 0.5 * 0.81) / 4)
