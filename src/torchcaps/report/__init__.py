"""Report what a finished run has learned, as a page of its own."""

from torchcaps.report.evaluated import N_PAIRS, EvaluatedRun, evaluate_run
from torchcaps.report.report import write_report

__all__ = ["N_PAIRS", "EvaluatedRun", "evaluate_run", "write_report"]
