"""Fenced off: the other architectures of the papers, for comparison and training. No fill uses them.

Build them by name with `geonp.nn.models.build`. Only that module, tests and benchmarks import from here.
"""
