"""One raster's own model: the search for how to read it, and training on its observed cells.

It may import `training`, `fill` and everything to the left of them.
"""
