"""Commands for those who work on beamtree; nothing here is installed."""
