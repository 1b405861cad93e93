"""Scores of fills on held-out cells, beside kriging, splines and other classical methods.

It may import `fill` and everything to the left of it.
"""
