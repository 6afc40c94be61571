"""What all kernels stand on: addresses in memory, random bits and products."""
