"""What all kernels use: the address table, random bits, small functions and products."""
