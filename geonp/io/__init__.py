"""Files and stores: GeoTIFF, NetCDF and Zarr in and out, and the journal of a resumable job.

It knows no model. It may import `raster`.
"""
