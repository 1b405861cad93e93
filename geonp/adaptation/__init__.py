"""Adaptation of a model to one raster: search for its neighbourhood, and fine-tuning on the observed cells.

It may import `training`, `fill` and everything to the left of them.
"""
