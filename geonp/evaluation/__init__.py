"""Scores of fills and of interpolated measurements, beside kriging, splines and other classical methods.

It may import `scattered` and everything to the left of it.
"""
