"""``python -m study``: every command of torchcaps, with the study's recipes and data sets, and those of the study."""

import sys

from study.cli import main

if __name__ == "__main__":
    sys.exit(main())
