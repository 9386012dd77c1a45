from __future__ import annotations

from typing import Any

import pytest
import torch

from torchcaps.explain import capsule_places, map_edges, receptive_fields_of
from torchcaps.layers import ConvCaps, DenseCaps
from torchcaps.models import CapsNet, MatrixCapsNet, capsnet_deep, capsnet_stacked, matched_cnn

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
    assert receptive_fields_of(with_padded_capsules())[0] == (8.0, 2, 21, 6)  # where the primary ones are


def test_every_convolution_widens_the_fields():
    rows, columns = receptive_fields_of(capsnet_deep((1, 24, 30)))
    # 3×3; 3×3 of stride 2; three more of 3×3, now 2 pixels apart; and primary capsules of 3×3 and stride 2
    assert rows == (0.0, 4, 1 + 2 + 2 + 4 + 4 + 4 + 4, 6)
    assert columns == (0.0, 4, 21, 8)
    model = CapsNet((1, 24, 36), stem=({"kernel_size": (3, 5), "stride": (1, 2), "padding": 0},), **TINY)
    assert receptive_fields_of(model) == ((9.0, 2, 19, 3), (14.0, 4, 29, 2))


def with_padded_capsules():
    model = capsnet_stacked(**TINY)
    layer = model.hidden[0]
    model.hidden[0] = ConvCaps(layer.n_types, layer.n_out, layer.d_in, layer.d_out, layer.kernel_size, padding=1)
    model.classes = DenseCaps(layer.n_out * 36, 10, layer.d_out, 16)
    model.map_shape = (layer.n_out, 6, 6)
    return model


@pytest.mark.parametrize("layer", [0, 1, 2, -1])
def test_every_map_of_matrix_capsules_has_its_fields(layer):
    rows, columns = receptive_fields_of(MatrixCapsNet((2, 32, 36), A=2, B=2, C=2, D=2), layer)
    # 5×5 of stride 2; then 3×3 of stride 2 and 3×3 of stride 1 on top of it
    assert rows == ((2.0, 2, 5, 14), (4.0, 4, 9, 6), (8.0, 4, 17, 4), (8.0, 4, 17, 4))[layer]
    assert columns.n == (16, 7, 5, 5)[layer]


def test_the_last_maps_centre_is_that_of_the_coordinates():
    model = MatrixCapsNet((1, 30, 41), A=2, B=2, C=2, D=2)
    left, right, bottom, top = map_edges(model)
    assert model.classes.centre == ((top + bottom) / 2 - 29 / 2, (left + right) / 2 - 40 / 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CapsNet((1, 27, 31), 3, **TINY),
        lambda: CapsNet((1, 27, 31), 3, padding=2, **TINY),
        with_padded_capsules,
        lambda: CapsNet((1, 27, 31), 3, hidden=({"kernel_size": 2, "stride": 2},), **TINY),
        # Dynamic routing, for in EM all places of a map compete for a child; and a mean depends on all pixels.
        lambda: MatrixCapsNet((1, 37, 41), 3, A=2, B=2, C=2, D=2, routing="dynamic", standardize=False),
    ],
)
def test_a_pixel_changes_just_the_capsules_whose_fields_hold_it(make):
    model = make()
    x = torch.rand(1, *model.image_shape, requires_grad=True)
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
    with pytest.raises(ValueError, match="model must be a CapsNet or MatrixCapsNet, .* got a BaselineCNN"):
        capsule_places(matched_cnn(n_parameters=30_000))
    with pytest.raises(ValueError, match="layer must be one of -1, 0; got 1"):
        receptive_fields_of(CapsNet(**TINY), 1)
