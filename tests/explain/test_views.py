from __future__ import annotations

import pytest
import torch

from torchcaps.explain import mean_by_view, view_responses
from torchcaps.layers import ClassCaps
from torchcaps.models import CapsNet, MatrixCapsNet, matched_cnn

SHAPE = (2, 24, 26)


def test_means_are_taken_over_all_images_of_a_view():
    values = torch.tensor([[1.0], [3.0], [5.0], [8.0]])
    elevation, azimuth = torch.tensor([40, 40, 30, 30]), torch.tensor([0, 0, 20, 0])
    elevations, azimuths, means = mean_by_view(values, elevation, azimuth)
    assert elevations.tolist() == [30, 40]
    assert azimuths.tolist() == [0, 20]
    assert means[0, :, 0].tolist() == [8, 5]
    assert means[1, 0, 0] == 2
    assert means[1, 1, 0].isnan()


@torch.no_grad()
@pytest.mark.parametrize("batch_size", [2, 100])
def test_views_hold_what_the_model_says(batch_size):
    model, x = MatrixCapsNet(SHAPE, 3, A=4, B=2, C=2, D=2).eval(), torch.rand(5, *SHAPE)
    elevation, azimuth = torch.tensor([30, 30, 35, 35, 30]), torch.tensor([20, 0, 20, 0, 0])
    found = view_responses(model, x, 1, elevation, azimuth, batch_size)
    scores, capsules = model(x)
    assert found.label == 1
    torch.testing.assert_close(found.activation[1, 0], scores[3])
    torch.testing.assert_close(found.activation[0, 0], (scores[1] + scores[4]) / 2)
    torch.testing.assert_close(found.pose[0, 1], capsules[-1].pose[0, 1].flatten())


def test_classes_are_those_of_the_class_layer_that_is_there():
    model, angles = MatrixCapsNet(SHAPE, 3, A=4, B=2, C=2, D=2), torch.tensor([0, 10])
    model.classes = ClassCaps(2, 5, 16, 16, routing="em")
    x = torch.rand(2, *SHAPE)
    torch.testing.assert_close(
        view_responses(model, x, 4, angles, angles).activation.diagonal().T, model.eval()(x).scores
    )
    with pytest.raises(ValueError, match="label must be one of 0, 1, 2, 3, 4; got 5"):
        view_responses(model, x, 5, angles, angles)


def test_a_capsnet_has_views_too_and_a_cnn_has_not():
    model = CapsNet((1, 22, 26), 3, channels=2, n_types=2, d_class=5, decoder=None).eval()
    angles = torch.tensor([0, 10])
    assert view_responses(model, torch.rand(2, 1, 22, 26), 0, angles, angles).pose.shape == (2, 2, 5)
    with pytest.raises(ValueError, match="model must return its class capsules"):
        view_responses(matched_cnn(n_parameters=30_000), torch.rand(2, 1, 28, 28), 0, angles, angles)
    with pytest.raises(ValueError, match=r"azimuth must be \[N\] with N=2 as in images"):
        view_responses(model, torch.rand(2, 1, 22, 26), 0, angles, angles[:1])
    with pytest.raises(ValueError, match="label must be one of 0, 1, 2; got 5"):
        view_responses(model, torch.rand(2, 1, 22, 26), 5, angles, angles)
