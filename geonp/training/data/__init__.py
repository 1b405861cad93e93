"""What models are trained on: synthetic fields, processes, epidemics, images and reanalysis.

It may import `training` and everything to the left of it.
"""
