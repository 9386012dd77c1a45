"""Activation and pose of a class capsule over the viewpoints of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.checks import check_at_least, check_choice, check_shapes
from torchcaps.explain.canvas import INK, MUTED, SMALL, TEXT, bare, check_pictures, new_figure, numbers, pixels, scales
from torchcaps.explain.models import class_capsules, inspects_model
from torchcaps.explain.pca import principal_components
from torchcaps.typed import typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Views(NamedTuple):
    """Class capsules of one object seen from E elevations and A azimuths.

    Values are means over the object's images from a viewpoint, such as those under several lightings. They are NaN
    where there is no image.

    Attributes:
        label: the object's class.
        elevation: elevations, ascending, ``[E]``.
        azimuth: azimuths, ascending, ``[A]``.
        activation: activations of all class capsules, ``[E, A, J]``.
        pose: pose of the capsule of the object's class, ``[E, A, D]``.
    """

    label: int
    elevation: Tensor
    azimuth: Tensor
    activation: Tensor
    pose: Tensor


@typed
@inspects_model
def view_responses(
    model: nn.Module, images: Tensor, label: int, elevation: Tensor, azimuth: Tensor, batch_size: int = 100
) -> Views:
    """Run a model on one object from all sides.

    Args:
        model: any network that returns its class capsules.
        images: images of the object, ``[N, C, H, W]``, values 0 … 1.
        label: the object's class.
        elevation: elevation of each image, ``[N]``, in any unit.
        azimuth: azimuth of each image, ``[N]``.
        batch_size: number of images at a time.

    Returns:
        :class:`Views`.

    Raises:
        ValueError: the model has no capsules, the images do not fit it, the shapes do not fit each other,
            or there is no such class.

    Source: Hinton, Sabour, Frosst 2018, section 5.1, asks how recognition depends on the viewpoint.
    """
    check_shapes(images=(images, "N C H W"), elevation=(elevation, "N"), azimuth=(azimuth, "N"))
    check_at_least("batch_size", batch_size, 1)
    found = [class_capsules(model, part) for part in images.split(batch_size)]
    activation = torch.cat([scores for scores, _ in found])  # [N, J]
    check_choice("label", label, range(activation.shape[1]))
    pose = torch.cat([pose[:, label] for _, pose in found])  # [N, D]
    elevations, azimuths, means = mean_by_view(torch.cat((activation, pose), dim=1), elevation, azimuth)
    return Views(label, elevations, azimuths, *means.split((activation.shape[1], pose.shape[1]), dim=2))


@typed
def mean_by_view(values: Tensor, elevation: Tensor, azimuth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Average over all images from the same viewpoint.

    Args:
        values: K values of each image, ``[N, K]``.
        elevation: elevation of each image, ``[N]``.
        azimuth: azimuth of each image, ``[N]``.

    Returns:
        The elevations ``[E]`` and azimuths ``[A]`` that occur, ascending; means ``[E, A, K]``, NaN where no image is
        from both.

    Raises:
        ValueError: the shapes do not fit.
    """
    check_shapes(values=(values, "N K"), elevation=(elevation, "N"), azimuth=(azimuth, "N"))
    elevations, row = elevation.unique(return_inverse=True)
    azimuths, column = azimuth.unique(return_inverse=True)
    place = (row * len(azimuths) + column).to(values.device)
    total = values.new_zeros(len(elevations) * len(azimuths), values.shape[1]).index_add(0, place, values)
    n = place.bincount(minlength=len(total))
    means = total / n[:, None]  # 0 / 0 is NaN
    return elevations, azimuths, means.unflatten(0, (len(elevations), len(azimuths)))


#: Azimuths for which the pictures are as wide as they should be, and half a picture in its cell.
_COLUMNS, _HALF = 18, 0.48


@typed
def draw_views(
    views: Views, images: Tensor, elevation: Tensor, azimuth: Tensor, name: str, trained: Tensor | None = None
) -> Figure:
    """Draw activation and pose over azimuth, a line for each elevation.

    The pose is projected on the two axes in which it varies most. Above stands the object itself, from the lowest
    elevation and from the highest.

    Args:
        views: those of :func:`view_responses`, for viewpoints in degrees.
        images: the images it was given, ``[N, C, H, W]``.
        elevation: elevation of each image, ``[N]``.
        azimuth: azimuth of each image, ``[N]``.
        name: name of the object's class.
        trained: which viewpoints were trained on, ``[E, A]`` bool; their points become dots. None draws no dots.

    Raises:
        ValueError: the shapes do not fit each other.
    """
    sizes = check_shapes(
        **{
            "views.activation": (views.activation, "E A J"),
            "views.elevation": (views.elevation, "E"),
            "views.azimuth": (views.azimuth, "A"),
            "images": (images, "N C H W"),
            "elevation": (elevation, "N"),
            "azimuth": (azimuth, "N"),
        },
        **({} if trained is None else {"trained": (trained, "E A")}),
    )
    check_pictures(**{"images": (images, "N C H W"), "views.activation": (views.activation, "E A J")})
    check_pictures(**{"views.pose": (views.pose, "E A D")})
    check_choice("views.label", views.label, range(sizes["J"]))
    ends = views.elevation[[0, -1]].unique()
    high = 0.42 * len(ends) * sizes["H"] / sizes["W"]
    figure = new_figure(9.5, 6.6 + high)
    strip, *charts = figure.subplots(4, 1, sharex=True, height_ratios=(high, 1.8, 1.8, 1.8))
    _strip(strip, images, elevation, azimuth, ends, views.azimuth)
    pose = views.pose.cpu()
    known = ~pose.isnan().any(dim=2)  # [E, A]
    plane = principal_components(pose[known], k=min(2, pose.shape[2]))
    moves = plane.project(pose)
    true = views.activation[..., views.label].cpu()
    curves = [(f"Activation of the capsule of class {name}", true)]
    curves += [
        (f"Its pose along the {nth} axis ({100 * share:.0f} % of its variance)", moves[..., k])
        for k, (nth, share) in enumerate(zip(("1st", "2nd"), plane.share.tolist(), strict=False))
    ]
    colours = _colours(sizes["E"])
    x = views.azimuth.tolist()
    for axes, (title, values) in zip(charts, curves, strict=False):
        for row, (colour, degrees) in enumerate(zip(colours, views.elevation.tolist(), strict=True)):
            style: dict[str, Any] = {"color": colour, "linewidth": 1.5, "label": f"{degrees:g}°"}
            if trained is not None:
                style |= {"marker": "o", "markersize": 4, "markevery": trained[row].nonzero().squeeze(1).tolist()}
            axes.plot(x, numbers(values[row]), **style)
        scales(axes, title, "azimuth, degrees" if axes is charts[-1] else "")
    others = views.activation.cpu().clone()
    others[..., views.label] = -1
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
    """Draw the first image of each viewpoint above its azimuth, the highest elevation on top."""
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
    """Return colours from dark to light, one for each elevation."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * k / max(1, n - 1)) for k in range(n)]
