"""What is made small, and what counts as an error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from torchcaps.experiments.batches import Batch
from torchcaps.experiments.evaluate import evaluate
from torchcaps.experiments.experiment import Experiment, Model
from torchcaps.experiments.objective import judge, total_loss, wrong
from torchcaps.models import Output, build
from torchcaps.ops import margin_loss, reconstruction_loss, spread_loss


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


def test_cross_entropy() -> None:
    scores, config = torch.randn(3, 3), Experiment(loss="cross_entropy")
    model = torch.nn.Identity()
    one = total_loss(config, model, Output(scores), batch(1))
    torch.testing.assert_close(one, F.cross_entropy(scores, torch.tensor([0, 1, 2])))
    two = total_loss(config, model, Output(scores), batch(2))
    present = torch.tensor([[1.0, 0, 1], [1, 1, 0], [0, 1, 1]])
    torch.testing.assert_close(two, F.binary_cross_entropy_with_logits(scores, present) * 3)


def test_spread_loss_grows_its_margin_over_the_run() -> None:
    scores, labels = torch.rand(3, 3), torch.tensor([0, 1, 2])
    for progress, margin in ((0.0, 0.2), (0.5, 0.55), (1.0, 0.9)):
        got = total_loss(Experiment(loss="spread"), torch.nn.Identity(), Output(scores), batch(1), progress=progress)
        torch.testing.assert_close(got, spread_loss(scores, labels, margin))
    half_way = total_loss(
        Experiment(loss="spread", margin="sigmoid"), torch.nn.Identity(), Output(scores), batch(1), progress=0.1
    )
    torch.testing.assert_close(half_way, spread_loss(scores, labels, 0.2 + 0.79 / 2))


def test_evaluate_weighs_images_not_batches() -> None:
    class Fixed(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Output:
            return Output(x.flatten(1)[:, :2])

    def one(rows: list[list[float]]) -> Batch:
        x = torch.tensor(rows)[:, None, None]
        return Batch(x, torch.zeros(len(rows), 1, dtype=torch.int64), x[:, None])

    given = [one([[1.0, 0.0]] * 3), one([[0.0, 1.0]])]
    got = evaluate(replace(Experiment(), loss="margin"), Fixed(), given)
    # No loss for the three; 0.81 + 0.5 · 0.81 for the one (length 0 of the true class, 1 of the other).
    assert got["error"] == 0.25
    assert got["loss"] == pytest.approx((3 * 0.0 + 0.81 + 0.5 * 0.81) / 4)
