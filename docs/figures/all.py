"""Make all pictures of the pages again, in about two minutes: `python docs/figures/all.py`."""

from __future__ import annotations

import constellations
import curves
import poses
import records
import transforming
import twelve_votes

if __name__ == "__main__":
    for each in (constellations, curves, poses, twelve_votes, records, transforming):
        for path in each.make():
            print(path)
