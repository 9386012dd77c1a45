"""``python -m torchcaps``."""

import sys

from torchcaps.cli import main

if __name__ == "__main__":
    sys.exit(main())
