"""The idea on a GPU, in Triton: tensors in, tensors out.

Files named `…_kernels.py` import Triton, and beamtree must also work without it. So the modules that the rest
of the package imports from here import such files, and whatever depends on them, inside functions only.
"""
