"""Activation and pose of a class capsule around an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchcaps.analysis.draw.canvas import INK, MUTED, SMALL, TEXT, bare, new_figure, numbers, pixels, scales
from torchcaps.analysis.plane import principal_plane
from torchcaps.analysis.views import Views
from torchcaps.checks import check_shapes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Azimuths for which the pictures are as wide as they should be, and half a picture in its cell.
_COLUMNS, _HALF = 18, 0.48


def draw_views(
    found: Views, images: Tensor, elevation: Tensor, azimuth: Tensor, name: str, trained: Tensor | None = None
) -> Figure:
    """Curves over azimuth, a line an elevation: the activation, and the pose along the two axes in which it
    moves most. Above them the object itself, from the lowest elevation and from the highest.

    Args:
        found: as :func:`torchcaps.analysis.views` gives it, of viewpoints in degrees.
        images: that it was found from, ``[N, C, H, W]``.
        elevation: of each, ``[N]``.
        azimuth: of each, ``[N]``.
        name: of the object's class.
        trained: which viewpoints were trained on, ``[E, A]`` bool; their points become dots. None where
            there is no difference.

    Raises:
        ValueError: the shapes do not fit each other.
    """
    sizes = check_shapes(
        activation=(found.activation, "E A J"),
        elevation_of_views=(found.elevation, "E"),
        azimuth_of_views=(found.azimuth, "A"),
        images=(images, "N C H W"),
        elevation=(elevation, "N"),
        azimuth=(azimuth, "N"),
        **({} if trained is None else {"trained": (trained, "E A")}),
    )
    ends = found.elevation[[0, -1]].unique()
    high = 0.42 * len(ends) * sizes["H"] / sizes["W"]
    figure = new_figure(9.5, 6.6 + high)
    strip, *charts = figure.subplots(4, 1, sharex=True, height_ratios=(high, 1.8, 1.8, 1.8))
    _strip(strip, images, elevation, azimuth, ends, found.azimuth)
    pose = found.pose.cpu()
    known = ~pose.isnan().any(dim=2)  # [E, A]
    plane = principal_plane(pose[known], k=min(2, pose.shape[2]))
    moves = plane.project(pose)
    true = found.activation[..., found.label].cpu()
    curves = [(f"Activation of the capsule of class {name}", true)]
    curves += [
        (f"Its pose along the {nth} axis ({100 * share:.0f} % of its variance)", moves[..., k])
        for k, (nth, share) in enumerate(zip(("1st", "2nd"), plane.share.tolist(), strict=False))
    ]
    colours = _colours(sizes["E"])
    x = found.azimuth.tolist()
    for axes, (title, values) in zip(charts, curves, strict=False):
        for row, (colour, degrees) in enumerate(zip(colours, found.elevation.tolist(), strict=True)):
            style: dict[str, Any] = {"color": colour, "linewidth": 1.5, "label": f"{degrees:g}°"}
            if trained is not None:
                style |= {"marker": "o", "markersize": 4, "markevery": trained[row].nonzero().squeeze(1).tolist()}
            axes.plot(x, numbers(values[row]), **style)
        scales(axes, title, "azimuth, degrees" if axes is charts[-1] else "")
    others = found.activation.cpu().clone()
    others[..., found.label] = -1
    if sizes["J"] > 1:
        mean = others.amax(dim=2).nanmean(dim=0)
        charts[0].plot(
            x, numbers(mean), color=MUTED, linestyle=(0, (4, 2)), label="strongest other class,\nmean of elevations"
        )
    charts[0].set_ylim(-0.02, 1.02)
    handles, labels = charts[0].get_legend_handles_labels()
    text = {"fontsize": SMALL, "title_fontsize": SMALL, "labelcolor": INK, "frameon": False}
    legend = figure.legend(handles, labels, title="elevation", loc="outside right center", **text)
    legend.get_title().set_color(MUTED)
    charts[-1].set_xticks(x)
    return figure


def _strip(axes: Any, images: Tensor, elevation: Tensor, azimuth: Tensor, rows: Tensor, columns: Tensor) -> None:
    """The first image of each viewpoint, above its azimuth; the highest elevation on top."""
    step = float(columns.diff().min()) if len(columns) > 1 else 1.0
    for i, high in enumerate(rows):
        for where in columns:
            here = ((elevation == high) & (azimuth == where)).nonzero()
            if len(here):
                extent = (float(where) - _HALF * step, float(where) + _HALF * step, i + 0.5 - _HALF, i + 0.5 + _HALF)
                picture = pixels(images[int(here[0])])
                axes.imshow(picture, extent=extent, aspect="auto", interpolation="nearest", vmin=0, vmax=1)
    left = float(columns[0]) - step / 2
    axes.set(xlim=(left, max(float(columns[-1]) + step / 2, left + _COLUMNS * step)), ylim=(0, len(rows)))
    bare(axes)
    names = [f"from {degrees:g}°" for degrees in rows.tolist()]
    axes.set_yticks([i + 0.5 for i in range(len(rows))], names, fontsize=TEXT, color=MUTED)
    axes.tick_params(length=0, labelbottom=False)


def _colours(n: int) -> list[Any]:
    """From dark to light, one an elevation."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * k / max(1, n - 1)) for k in range(n)]
