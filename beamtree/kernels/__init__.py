"""The idea on a GPU, in Triton: tensors in, tensors out."""
