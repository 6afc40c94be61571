"""The idea: search without a graph, then differentiate the survivors.

naive.py is the published algorithm, the truth for the rest.
"""
