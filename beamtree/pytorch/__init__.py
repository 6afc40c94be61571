"""The package's dealings with PyTorch: tracing, operators, precision, derivatives, checks of inputs."""
