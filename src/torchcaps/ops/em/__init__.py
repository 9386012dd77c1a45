"""EM routing: the paper's procedure, and compiled code that is held to it."""
