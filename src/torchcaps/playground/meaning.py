"""What a number of a pose does to the reconstruction, measured on the reconstruction itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: How far each number is moved to both sides: the paper's range.
REACH = 0.25
STEPS = 5
#: A change smaller than this is not seen: degrees of slant and of rotation, pixels of all else.
SEEN = {"slant": 4.0, "width": 0.8, "height": 0.8, "thickness": 0.2, "left–right": 0.4, "up–down": 0.4}
#: Share of the variation that a straight line explains, from which on the effect is called by its name.
STRAIGHT = 0.8
#: How much stronger, in units of :data:`SEEN`, the strongest effect is than the second, to be called by its name.
AHEAD = 1.25


def measure_strokes(images: Tensor) -> dict[str, Tensor]:
    """Measure how the ink lies in images ``[N, 1, H, W]`` of values 0 … 1.

    Returns:
        Each ``[N]``: ``slant`` in degrees (to the right is positive), ``width`` and ``height`` of the ink in pixels
        (four standard deviations), ``thickness`` of the stroke in pixels (ink over half its outline), and the centre
        of mass ``left–right`` and ``up–down`` in pixels.

    Example:
        >>> import torch
        >>> image = torch.zeros(1, 1, 28, 28)
        >>> image[..., 4:24, 12:16] = 1  # an upright bar, 20 high and 4 wide
        >>> found = measure_strokes(image)
        >>> round(float(found["height"] / found["width"]), 1)
        5.2
    """
    ink = images[:, 0].double()
    height, width = ink.shape[1:]
    mass = ink.sum(dim=(1, 2)).clamp_min(1e-6)
    y = torch.arange(height, dtype=torch.float64)[:, None] - (height - 1) / 2
    x = torch.arange(width, dtype=torch.float64)[None] - (width - 1) / 2

    def mean(values: Tensor) -> Tensor:
        return (ink * values).sum(dim=(1, 2)) / mass

    centre_x, centre_y = mean(x.expand(height, width)), mean(y.expand(height, width))
    dx, dy = x - centre_x[:, None, None], y - centre_y[:, None, None]
    spread_x, spread_y = mean(dx * dx), mean(dy * dy).clamp_min(1e-6)
    edge = ((ink.diff(dim=1).abs().sum(dim=(1, 2))) + ink.diff(dim=2).abs().sum(dim=(1, 2))).clamp_min(1e-6)
    slant = torch.atan((-mean(dx * dy) / spread_y).float()).double()  # onnxruntime has no arc tangent in float64
    # The width of an upright ink: what slant adds to it is taken away.
    upright = (spread_x - mean(dx * dy).square() / spread_y).clamp_min(0)
    return {
        "slant": slant.rad2deg(),
        "width": 4 * upright.sqrt(),
        "height": 4 * spread_y.sqrt(),
        "thickness": 2 * mass / edge,
        "left–right": centre_x,
        "up–down": -centre_y,
    }


def name_dimensions(decode: Callable[[Tensor], Tensor], pose: Tensor) -> list[str | None]:
    """Move each number of a pose, decode it, and name what changes most, where it changes along a line.

    Args:
        decode: from poses ``[N, D]`` to images ``[N, 1, H, W]``.
        pose: ``[D]``.

    Returns:
        D names of :func:`measure_strokes`, with a sign in front (``+slant`` where a larger number leans to the right);
        None where nothing is seen to change, the change bends, or two change about as much.
    """
    offsets = torch.linspace(-REACH, REACH, STEPS)
    moved = pose + offsets[None, :, None] * torch.eye(len(pose))[:, None]  # [D, S, D]
    found = measure_strokes(decode(moved.flatten(0, 1)))
    effects = {name: values.unflatten(0, moved.shape[:2]) for name, values in found.items()}
    return [_name({name: values[k] for name, values in effects.items()}, offsets.double()) for k in range(len(pose))]


def _name(effects: dict[str, Tensor], offsets: Tensor) -> str | None:
    sizes = {name: float((values[-1] - values[0]).abs()) / SEEN[name] for name, values in effects.items()}
    first, second, *_ = sorted(sizes, key=sizes.__getitem__, reverse=True)
    values = effects[first]
    if sizes[first] < 1 or sizes[first] < AHEAD * sizes[second] or float(values.std()) == 0:
        return None
    line = float(torch.corrcoef(torch.stack((values, offsets)))[0, 1])
    return f"{'+' if line > 0 else '−'}{first}" if line**2 >= STRAIGHT else None
