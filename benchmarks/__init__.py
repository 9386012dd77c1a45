"""How fast, and in how much memory: measured in one run, beside a floor and what others write.

Where contenders stand side by side, each is first held to the reference in float64, and none is timed that is not
right. Nothing here is asserted of a time.
"""
