from __future__ import annotations

from typing import Any

import pytest
import torch

from torchcaps.analysis import capsule_places, receptive_fields_of
from torchcaps.models import CapsNet, capsnet_stacked, matched_cnn

TINY: dict[str, Any] = {"channels": 2, "n_types": 2, "decoder": None}


def test_capsnet_on_mnist_sees_17_pixels_at_8_10_to_18():
    rows, columns = receptive_fields_of(CapsNet(**TINY))
    assert rows == columns == (8.0, 2, 17, 6)
    assert rows.edges == (7.0, 19.0)


def test_places_stand_in_the_order_of_the_couplings():
    places = capsule_places(CapsNet(**TINY))
    assert places.shape == (2 * 6 * 6, 2)
    assert places[0].tolist() == [8, 8]
    assert places[1].tolist() == [8, 10]  # the next column
    assert places[6].tolist() == [10, 8]  # the next row
    assert places[35].tolist() == [18, 18]
    assert places[36].tolist() == [8, 8]  # the next type


def test_padding_and_a_hidden_layer_move_the_centres():
    padded = receptive_fields_of(CapsNet((1, 24, 30), padding=4, **TINY))
    assert padded == ((0.0, 2, 17, 12), (0.0, 2, 17, 15))  # padding of half a kernel: the first sees pixel 0
    stacked = receptive_fields_of(capsnet_stacked(**TINY))
    assert stacked[0] == (10.0, 2, 21, 4)  # 3×3 capsules of step 2 more


@pytest.mark.parametrize("options", [{}, {"padding": 2}, {"hidden": ({"kernel_size": 2, "stride": 2},)}])
def test_a_pixel_changes_just_the_capsules_whose_fields_hold_it(options):
    model = CapsNet((1, 27, 31), 3, **TINY | options)
    x = torch.rand(1, 1, 27, 31, requires_grad=True)
    activation = model(x).capsules[-2].activation[0]  # [T, H, W]
    fields = receptive_fields_of(model)
    i, j = activation.shape[1] // 2, activation.shape[2] // 2
    (grad,) = torch.autograd.grad(activation[:, i, j].sum(), x)
    seen = grad[0, 0].nonzero()
    for axis, (field, k) in enumerate(zip(fields, (i, j), strict=True)):
        centre, half = field.first + field.step * k, (field.size - 1) / 2
        assert seen[:, axis].min() == max(0, centre - half)
        assert seen[:, axis].max() == min(x.shape[2 + axis] - 1, centre + half)


def test_a_cnn_has_no_capsules():
    with pytest.raises(ValueError, match="model must be a CapsNet, got a BaselineCNN"):
        capsule_places(matched_cnn(n_parameters=30_000))
