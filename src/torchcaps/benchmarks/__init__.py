"""How fast, and in how much memory: measured in one run, beside a floor and what others write.

Correctness is checked first, and nothing is timed that is not right. Nothing here is asserted of a time.
"""
