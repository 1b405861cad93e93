"""Properties of a raster: its grid, missing cells, dtype, metadata, classes and gaps.

It knows no model and no file: no torch, no rasterio. It may import `geonp.errors`.
"""
