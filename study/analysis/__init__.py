"""Analyses that the study's measures use."""

from study.analysis.attacks import bim, cross_entropy, fgsm, margin_gap, pgd
from study.analysis.equivariance import Responses, pose_follows, responses
from study.analysis.factor_mixture import FactorMixture, fit_factor_mixture
from study.analysis.overlap import SameClassOverlap, intersection_over_union, same_class_overlap
from study.analysis.probes import LinearProbe, logistic, r_squared, ridge
from study.analysis.robustness import (
    UnderAttack,
    accuracy_under_attack,
    random_targets,
    robust_accuracy,
    zero_gradients,
)
from study.analysis.routing_statistics import RoutingStatistics, routing_statistics

__all__ = [
    "FactorMixture",
    "LinearProbe",
    "Responses",
    "RoutingStatistics",
    "SameClassOverlap",
    "UnderAttack",
    "accuracy_under_attack",
    "bim",
    "cross_entropy",
    "fgsm",
    "fit_factor_mixture",
    "intersection_over_union",
    "logistic",
    "margin_gap",
    "pgd",
    "pose_follows",
    "r_squared",
    "random_targets",
    "responses",
    "ridge",
    "robust_accuracy",
    "routing_statistics",
    "same_class_overlap",
    "zero_gradients",
]
