"""What PyTorch asks of a library: tracing, operators, precision, derivatives, checks of what is handed in."""
