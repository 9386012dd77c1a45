"""Explain what a trained capsule means: compute it, and draw what was computed.

Computing needs torch alone. The functions ``draw_…`` return a matplotlib ``Figure`` that belongs to the caller
(``figure.savefig("picture.png")``, or the last line of a notebook cell).
"""

from torchcaps.explain.autoencoders import (
    draw_generative_units,
    draw_image_rows,
    draw_transformation_sweep,
    generative_units,
    part_reconstructions,
    transformation_sweep,
)
from torchcaps.explain.canvas import (
    FIRST,
    HIGHLIGHT,
    SECOND,
)
from torchcaps.explain.confusion import (
    confusion_matrix,
    draw_confusion,
    draw_misclassified,
)
from torchcaps.explain.couplings import (
    Couplings,
    coupling_maps,
    draw_couplings,
)
from torchcaps.explain.curves import (
    draw_curves,
    read_metrics,
)
from torchcaps.explain.features import (
    Features,
    extract_features,
)
from torchcaps.explain.masks import (
    colour_masks,
    draw_masks,
)
from torchcaps.explain.models import (
    as_autoencoder,
    as_capsnet,
    class_capsules,
    decoder_of,
    em_class_caps,
    eval_mode,
    full_gradient,
    inspects_model,
    scores_of,
    unwrap,
)
from torchcaps.explain.parts import (
    Parts,
    draw_parts,
    part_maps,
    propagate_responsibility,
)
from torchcaps.explain.pca import (
    PrincipalComponents,
    principal_components,
)
from torchcaps.explain.perturbations import (
    OFFSETS,
    dimension_strengths,
    draw_perturbations,
    draw_strongest,
    perturb,
)
from torchcaps.explain.pose_recovery import (
    RecoveryPanel,
    draw_pose_recovery,
)
from torchcaps.explain.receptive_fields import (
    ReceptiveField,
    capsule_places,
    map_edges,
    map_extent,
    receptive_fields_of,
)
from torchcaps.explain.reconstructions import (
    Reconstructions,
    draw_reconstructions,
    reconstruct,
)
from torchcaps.explain.reliability import (
    Reliability,
    draw_reliability,
    reliability,
)
from torchcaps.explain.segmentation import (
    Segmentation,
    draw_segmentation,
    red_and_green,
    segment,
)
from torchcaps.explain.several_labels import (
    co_occurrence,
    draw_co_occurrence,
    draw_labels,
)
from torchcaps.explain.sweep import (
    draw_sweep,
)
from torchcaps.explain.trace import (
    RoutedCall,
    Trace,
    trace_routing,
)
from torchcaps.explain.tree import (
    ParseTree,
    draw_parse_tree,
    parse_tree,
)
from torchcaps.explain.views import (
    Views,
    draw_views,
    mean_by_view,
    view_responses,
)
from torchcaps.explain.votes import (
    Votes,
    class_votes,
    draw_votes,
    votes_for_classes,
)
from torchcaps.models.pose_recovery import (
    AFFINE_PARAMETERS,
    ConsistencyError,
    Fit,
    RecoveredTransformation,
    affine_parameters,
    recover_transformation,
    regression_fit,
    transformation_consistency,
    unwrap_rotation,
)

__all__ = [
    "AFFINE_PARAMETERS",
    "FIRST",
    "HIGHLIGHT",
    "OFFSETS",
    "SECOND",
    "ConsistencyError",
    "Couplings",
    "Features",
    "Fit",
    "ParseTree",
    "Parts",
    "PrincipalComponents",
    "ReceptiveField",
    "Reconstructions",
    "RecoveredTransformation",
    "RecoveryPanel",
    "Reliability",
    "RoutedCall",
    "Segmentation",
    "Trace",
    "Views",
    "Votes",
    "affine_parameters",
    "as_autoencoder",
    "as_capsnet",
    "capsule_places",
    "class_capsules",
    "class_votes",
    "co_occurrence",
    "colour_masks",
    "confusion_matrix",
    "coupling_maps",
    "decoder_of",
    "dimension_strengths",
    "draw_co_occurrence",
    "draw_confusion",
    "draw_couplings",
    "draw_curves",
    "draw_generative_units",
    "draw_image_rows",
    "draw_labels",
    "draw_masks",
    "draw_misclassified",
    "draw_parse_tree",
    "draw_parts",
    "draw_perturbations",
    "draw_pose_recovery",
    "draw_reconstructions",
    "draw_reliability",
    "draw_segmentation",
    "draw_strongest",
    "draw_sweep",
    "draw_transformation_sweep",
    "draw_views",
    "draw_votes",
    "em_class_caps",
    "eval_mode",
    "extract_features",
    "full_gradient",
    "generative_units",
    "inspects_model",
    "map_edges",
    "map_extent",
    "mean_by_view",
    "parse_tree",
    "part_maps",
    "part_reconstructions",
    "perturb",
    "principal_components",
    "propagate_responsibility",
    "read_metrics",
    "receptive_fields_of",
    "reconstruct",
    "recover_transformation",
    "red_and_green",
    "regression_fit",
    "reliability",
    "scores_of",
    "segment",
    "trace_routing",
    "transformation_consistency",
    "transformation_sweep",
    "unwrap",
    "unwrap_rotation",
    "view_responses",
    "votes_for_classes",
]
