"""The idea on a GPU, in Triton: tensors in, tensors out.

Files that end in `_kernels.py` import Triton. What the rest of the package imports of this one imports them,
and whatever rests on them, inside functions: beamtree works without Triton.
"""
