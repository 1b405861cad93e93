"""Training data: synthetic fields, Gaussian processes, epidemics, images and reanalysis.

It may import `training` and everything to the left of it.
"""
