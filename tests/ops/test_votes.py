"""Votes, receptive fields and coordinates, by numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from torchcaps.ops import coordinate_offset, matrix_votes, receptive_fields
from torchcaps.ops.votes import Fields


def test_a_vote_is_the_part_s_pose_times_the_part_s_place_in_the_whole() -> None:
    # A part seen at (3, 1), a quarter turn to the left; the whole lies 2 to the right of it in its own frame,
    # which is 2 up in the image.
    part = torch.tensor([[0.0, -1, 0, 3], [1, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]])
    whole_in_part = torch.tensor([[1.0, 0, 0, 2], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    vote = matrix_votes(part[None, None], whole_in_part[None, None])[0, 0, 0]
    assert vote.tolist() == [[0, -1, 0, 3], [1, 0, 0, 3], [0, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("pose", "weight", "message"),
    [
        ((2, 5, 4, 4), (6, 3, 4, 4), r"pose must be \[..., I=6, rows, d=4\] as weight says, got shape \[2, 5, 4, 4\]"),
        ((2, 6, 4, 3), (6, 3, 4, 4), r"pose must be .*, got shape \[2, 6, 4, 3\]"),
        ((6, 4), (6, 3, 4, 4), r"pose must be .*, got shape \[6, 4\]"),
        ((2, 6, 4, 4), (6, 4, 4), r"weight must be \[I, J, d, columns\], got shape \[6, 4, 4\]"),
    ],
)
def test_matrices_that_fit_no_poses(pose: tuple[int, ...], weight: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        matrix_votes(torch.zeros(pose), torch.zeros(weight))


def similarity(degrees: float, scale: float, x: float, y: float) -> torch.Tensor:
    """Rotate counter-clockwise, rescale, then translate: a 4×4 pose in the plane z = 0."""
    cos, sin = scale * math.cos(math.radians(degrees)), scale * math.sin(math.radians(degrees))
    return torch.tensor([[cos, -sin, 0, x], [sin, cos, 0, y], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.float64)


def test_the_worked_pose_transformations_of_the_seminar() -> None:
    # W_11: rotate by 135°, rescale by 1, translate (0, −1). W_12: by 45°, by 2, (0, −4).
    weight = torch.stack((similarity(135, 1, 0, -1), similarity(45, 2, 0, -4)))[None]
    # Feature 1 stands upright at (3, 5), then turned a quarter to the left and twice as large.
    upright, turned = similarity(0, 1, 3, 5), similarity(90, 2, 3, 5)
    votes = matrix_votes(torch.stack((upright, turned))[:, None], weight)[:, 0]
    torch.testing.assert_close(votes[0, 0], similarity(135, 1, 3, 4))
    torch.testing.assert_close(votes[0, 1], similarity(45, 2, 3, 1))
    # (0, −1), a quarter to the left and twice as large, is (2, 0); (0, −4) is (8, 0).
    torch.testing.assert_close(votes[1, 0], similarity(225, 2, 5, 5))
    torch.testing.assert_close(votes[1, 1], similarity(135, 4, 11, 5))


def test_fields_number_children_by_type_row_column() -> None:
    fields = Fields((2, 3, 4), (2, 2), (1, 2))
    assert fields.places == (2, 2) and fields.n_children == 8 and fields.n_lower == 24
    assert fields.child.tolist()[0] == [0, 1, 4, 5, 12, 13, 16, 17]
    assert fields.child.tolist()[3] == [6, 7, 10, 11, 18, 19, 22, 23]
    assert fields.seen_by().tolist()[0] == [1, 1, 2, 2, 1, 1, 2, 2]  # the middle row lies in two fields


def test_fields_gather_what_they_number() -> None:
    fields = Fields((2, 3, 4), (2, 2), (1, 2))
    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert fields.gather(x).tolist() == [fields.child.tolist()]
    assert fields.gather(x[..., None, None].expand(1, 2, 3, 4, 5, 6)).shape == (1, 4, 8, 5, 6)


def test_logsumexp_over_the_places_that_see_a_child() -> None:
    fields = Fields((1, 1, 3), (1, 2), (1, 1))  # the middle child lies in both fields
    x = torch.tensor([[[[0.0], [1.0]], [[2.0], [-1000.0]]]])
    both = math.log(math.exp(1) + math.exp(2))
    torch.testing.assert_close(fields.logsumexp(x), torch.tensor([[[[0.0], [both]], [[both], [-1000.0]]]]))


FIELDS = [
    ((2, 5, 6), (2, 3), (2, 1)),
    ((1, 7, 9), (3, 3), (2, 2)),
    ((3, 9, 8), (3, 2), (1, 2)),
    ((2, 9, 9), (2, 2), (3, 3)),  # between fields are capsules that nothing sees
    ((1, 7, 7), (5, 1), (2, 3)),
    ((2, 4, 4), (4, 4), (1, 1)),
]


@pytest.mark.parametrize(("map_shape", "kernel_size", "stride"), FIELDS)
def test_sums_over_the_places_that_see_a_capsule(
    map_shape: tuple[int, int, int], kernel_size: tuple[int, int], stride: tuple[int, int]
) -> None:
    """As sums at the numbers of the children."""
    fields = Fields(map_shape, kernel_size, stride)
    x = torch.randn(2, fields.n_places, fields.n_children, 3, dtype=torch.float64, requires_grad=True)

    def numbered(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(2, fields.n_lower, 3).index_add(1, fields.child.flatten(), x.flatten(1, 2))

    torch.testing.assert_close(fields.total(x), numbered(x).unflatten(1, map_shape))
    found, wanted = fields.logsumexp(x), numbered(x.exp())[:, fields.child].log()
    torch.testing.assert_close(found, wanted)
    weight = torch.randn_like(found)
    torch.testing.assert_close(*(torch.autograd.grad(y, x, weight)[0] for y in (found, wanted)))
    assert torch.autograd.gradcheck(fields.logsumexp, (x[:1, :, :, :1].detach().requires_grad_(),))
    assert fields.seen_by().equal(numbered(torch.ones_like(x))[0, :, 0][fields.child].long())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # which torch itself calls for this
def test_sums_of_exponentials_under_transforms() -> None:
    fields = Fields((2, 5, 6), (2, 3), (2, 1))
    x, along = torch.randn(2, 3, fields.n_places, fields.n_children, 2, dtype=torch.float64).unbind()
    one = torch.func.vmap(lambda each: fields.logsumexp(each[None])[0])
    torch.testing.assert_close(one(x), fields.logsumexp(x))
    wanted = (fields.logsumexp(x + 1e-6 * along) - fields.logsumexp(x - 1e-6 * along)) / 2e-6
    torch.testing.assert_close(torch.func.jvp(fields.logsumexp, (x,), (along,))[1], wanted, rtol=1e-6, atol=1e-8)
    assert torch.autograd.gradgradcheck(fields.logsumexp, (x[:1, :, :, :1].clone().requires_grad_(),))


def test_coordinates_in_the_right_hand_column() -> None:
    # Two rows 8 pixels apart about a centre 1 pixel below the image's: −3 and 5; three columns 4 apart: −4, 0, 4.
    # The centre lies 2 to the left of it besides: −6, −2, 2.
    offset = coordinate_offset(2, 3, 16, spacing=(8, 4), centre=(1, -2), scale=10).unflatten(-1, (4, 4))
    assert offset.shape == (2, 3, 4, 4)
    torch.testing.assert_close(offset[:, 0, 0, 3], torch.tensor([-0.3, 0.5]))
    torch.testing.assert_close(offset[0, :, 1, 3], torch.tensor([-0.6, -0.2, 0.2]))
    offset[:, :, :2, 3] = 0
    assert not offset.any()


def test_coordinates_in_the_top_row() -> None:
    offset = coordinate_offset(2, 3, 16, placement="row", spacing=(8, 4), scale=10)
    torch.testing.assert_close(offset[1, 0, :2], torch.tensor([0.4, -0.4]))  # 4 pixels down, 4 to the left
    assert not offset[:, :, 2:].any()


def test_a_hundred_pixels_add_one_as_in_the_released_code() -> None:
    torch.testing.assert_close(coordinate_offset(1, 1, 16, centre=(100, 50))[0, 0, [3, 7]], torch.tensor([1.0, 0.5]))


def test_coordinates_are_rounded_once() -> None:
    fine = coordinate_offset(4, 3, 16, spacing=(3, 0.1), scale=7, dtype=torch.float64)
    assert fine[0, 2, 3].item() == -4.5 / 7  # 1.5 rows of 3 pixels above the centre; not as near in float32
    assert fine[0, 2, 7].item() == 0.1 / 7
    torch.testing.assert_close(coordinate_offset(4, 3, 16, spacing=(3, 0.1), scale=7), fine.float(), rtol=0, atol=0)


def test_bad_coordinates() -> None:
    with pytest.raises(ValueError, match="placement must be one of column, row"):
        coordinate_offset(2, 2, 16, placement="corner")
    with pytest.raises(ValueError, match="needs votes that are square matrices, got 6 elements"):
        coordinate_offset(2, 2, 6)
    with pytest.raises(ValueError, match="d_out must be an integer of at least 2, got -1"):
        coordinate_offset(2, 2, -1)
    with pytest.raises(ValueError, match="height must be an integer of at least 0, got 2.5"):
        coordinate_offset(2.5, 2, 16)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="centre must be two numbers, got None"):
        coordinate_offset(2, 2, 16, centre=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kernel_size must be two numbers, got 2"):
        receptive_fields(torch.rand(1, 1, 4, 4, 2), 2, (1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"scale must be positive, got 0\.0"):
        coordinate_offset(2, 2, 16, scale=0.0)
