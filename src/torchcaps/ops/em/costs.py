"""How many operations EM routing's kernels do, and how many bytes they move, counted from their code.

What a graphics processor can do of both in a second gives the least time that a pass can take. An operation is one of
a lane in float32: a sum, product, or both at once. Bytes are those that a pass must read or write once, were its cache
without limit; exponentials count as two operations, addresses and loops as none.
"""

from __future__ import annotations

from typing import NamedTuple

#: Of one vote. V − μ; logit; dr; from dr to dV, the first time and later; product with W or M; Σ r (V − μ); its square.
VOTE, LOGIT, SLOPE, FIRST_SLOPE = 64, 36, 52, 36
FIRST_VOTE_GRADIENT, VOTE_GRADIENT, PRODUCT, MEAN, SQUARE = 32, 48, 64, 17, 32
#: A step of the softmax over parents; R and its product with the activation; gradient of a logit; a size of float32.
SOFTMAX, SHARE, LOGIT_GRADIENT, SIZE = 7, 5, 3, 4


class Cost(NamedTuple):
    """Of one kernel, in all its launches: ``launches``, ``operations`` of lanes, ``bytes`` read or written."""

    kernel: str
    launches: int
    operations: int
    bytes: int

    def seconds(self, operations_per_s: float, bytes_per_s: float) -> float:
        """Bound the time from below, for a device that does so many of each."""
        return max(self.operations / operations_per_s, self.bytes / bytes_per_s)


def em_costs(
    n_images: int, lower: tuple[int, int, int], kernel: int, n_out: int, stride: int, n_iters: int
) -> list[Cost]:
    """Count what one forward and backward pass costs where no variance cancels.

    Args:
        n_images: B.
        lower: T, H, W of the children's map.
        kernel: K_h = K_w.
        n_out: types of parent J.
        stride: of rows and of columns.
        n_iters: M-steps.

    Returns:
        The costs of each kernel that makes votes, forward and backward, in float32.
    """
    types, height, width = lower
    n_places = ((height - kernel) // stride + 1) * ((width - kernel) // stride + 1)
    n_children, n_parents = n_images * types * height * width, n_images * n_places * n_out
    n_weights, later = types * kernel * kernel * n_out, n_iters - 1
    n_votes = n_parents * types * kernel * kernel
    matrices = 16 * SIZE * (n_children + n_weights)

    def cost(name: str, launches: int, of_a_vote: int, of_a_parent: int, of_a_child: int, of_a_weight: int) -> Cost:
        numbers = of_a_parent * n_parents + of_a_child * n_children + of_a_weight * n_weights
        return Cost(name, launches, launches * n_votes * of_a_vote, launches * (matrices + SIZE * numbers))

    shared = VOTE + LOGIT + SHARE
    later_slopes = SLOPE + 16 + LOGIT_GRADIENT
    return [
        cost("parent_pass, first, mean", 1, VOTE + MEAN, 17, 1, 0),
        cost("parent_pass, first, variance", 1, VOTE + MEAN + SQUARE, 16 + 33, 1, 0),
        cost("child_pass, forward", later, VOTE + LOGIT + SOFTMAX, 33, 5, 0),
        cost("parent_pass, forward", later, shared + MEAN + SQUARE, 33 + 33, 4, 0),
        cost("child_pass, backward", later, VOTE + LOGIT + SOFTMAX + SLOPE + 3, 82, 5, 0),
        cost("pose_pass", later, shared + later_slopes + VOTE_GRADIENT - 16 + PRODUCT, 82, 4 + 1 + 2 * 17, 0),
        cost("weight_pass", later, shared + later_slopes + VOTE_GRADIENT - 16 + PRODUCT, 82, 4, 16),
        cost("parent_pass, backward", later, shared + SLOPE + LOGIT_GRADIENT + MEAN + SQUARE, 82 + 33, 4, 0),
        cost("pose_pass, first", 1, VOTE + FIRST_SLOPE + 1 + FIRST_VOTE_GRADIENT + PRODUCT, 49, 1 + 17, 0),
        cost("weight_pass, first", 1, VOTE + 16 + FIRST_VOTE_GRADIENT + PRODUCT, 48, 1, 16),
    ]
