"""What a trained capsule means: functions that compute, and functions that draw what was computed.

Computing needs torch alone; the functions ``draw_…`` return a matplotlib ``Figure`` that belongs to
the caller (``figure.savefig("picture.png")``, or the last line of a notebook cell).
"""

from torchcaps.analysis.confusion import confusion_matrix
from torchcaps.analysis.couplings import Couplings, coupling_maps
from torchcaps.analysis.draw.canvas import FIRST, HIGHLIGHT, SECOND
from torchcaps.analysis.draw.confusion import draw_confusion
from torchcaps.analysis.draw.couplings import draw_couplings
from torchcaps.analysis.draw.curves import draw_curves
from torchcaps.analysis.draw.following import draw_following
from torchcaps.analysis.draw.images import draw_mistakes, draw_reconstructions
from torchcaps.analysis.draw.painted import draw_painted, draw_sweep, draw_units
from torchcaps.analysis.draw.parts import draw_parts
from torchcaps.analysis.draw.perturbations import draw_perturbations, draw_strongest
from torchcaps.analysis.draw.segmentation import draw_segmentation
from torchcaps.analysis.draw.tree import draw_parse_tree
from torchcaps.analysis.draw.views import draw_views
from torchcaps.analysis.draw.votes import draw_votes
from torchcaps.analysis.metrics import read_metrics
from torchcaps.analysis.painted import Told, generative_units, painted_alone, sweep, told
from torchcaps.analysis.parts import Parts, hand_down, part_maps
from torchcaps.analysis.perturb import OFFSETS, dimension_strengths, perturb
from torchcaps.analysis.places import Field, capsule_places, map_edges, receptive_fields_of
from torchcaps.analysis.plane import Plane, principal_plane
from torchcaps.analysis.reading import Reading, read
from torchcaps.analysis.reconstruct import Reconstructions, reconstruct
from torchcaps.analysis.recover import QUANTITIES, Line, Recovered, line, quantities, recover, unwound
from torchcaps.analysis.segment import Segmentation, red_and_green, segment
from torchcaps.analysis.tree import ParseTree, parse_tree
from torchcaps.analysis.views import Views, mean_by_view, views
from torchcaps.analysis.votes import Votes, class_votes, votes_for_classes

__all__ = [
    "FIRST",
    "HIGHLIGHT",
    "OFFSETS",
    "QUANTITIES",
    "SECOND",
    "Couplings",
    "Field",
    "Line",
    "ParseTree",
    "Parts",
    "Plane",
    "Reading",
    "Reconstructions",
    "Recovered",
    "Segmentation",
    "Told",
    "Views",
    "Votes",
    "capsule_places",
    "class_votes",
    "confusion_matrix",
    "coupling_maps",
    "dimension_strengths",
    "draw_confusion",
    "draw_couplings",
    "draw_curves",
    "draw_following",
    "draw_mistakes",
    "draw_painted",
    "draw_parse_tree",
    "draw_parts",
    "draw_perturbations",
    "draw_reconstructions",
    "draw_segmentation",
    "draw_strongest",
    "draw_sweep",
    "draw_units",
    "draw_views",
    "draw_votes",
    "generative_units",
    "hand_down",
    "line",
    "map_edges",
    "mean_by_view",
    "painted_alone",
    "parse_tree",
    "part_maps",
    "perturb",
    "principal_plane",
    "quantities",
    "read",
    "read_metrics",
    "receptive_fields_of",
    "reconstruct",
    "recover",
    "red_and_green",
    "segment",
    "sweep",
    "told",
    "unwound",
    "views",
    "votes_for_classes",
]
