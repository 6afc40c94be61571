"""The core idea: search without building a graph, then differentiate only what survived.

naive.py is the published algorithm, the reference that everything else is tested against.
"""
