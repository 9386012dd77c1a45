"""What is installed, what runs where, whether it is right, how fast, and what to do: ``torchcaps doctor``."""

from torchcaps.doctor.examine import examine
from torchcaps.doctor.report import anonymous, as_text, check_place, is_wrong, write

__all__ = ["anonymous", "as_text", "check_place", "examine", "is_wrong", "write"]
