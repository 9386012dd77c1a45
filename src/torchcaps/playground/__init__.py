"""A page on this machine: draw, see which capsules agree and what they reconstruct, or which class is where."""

from torchcaps.playground.drawing import fit_drawing, transform_image
from torchcaps.playground.network import Network, load_network
from torchcaps.playground.serve import serve_playground
from torchcaps.playground.site import write_playground

__all__ = [
    "Network",
    "fit_drawing",
    "load_network",
    "serve_playground",
    "transform_image",
    "write_playground",
]
