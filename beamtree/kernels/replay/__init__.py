"""The backward pass: from gradients of the final beams to those of leaves and parameters."""
