"""The GPU hour: what the kernels do on a real card, and what can be trained there in the time that is lent.

``python -m benchmarks.gpu`` runs stages in order of their worth. Each writes its record after every row, so that what
was killed is kept, and the same command goes on. It needs no more than torch, triton, lightning, numpy, scipy,
scikit-learn, matplotlib and pytest.
"""
