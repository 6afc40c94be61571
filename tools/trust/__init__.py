"""Checks of minutes: faults, hostile files and inputs, rounding, endurance. See docs/reliability.md."""
