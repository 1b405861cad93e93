"""The papers' other model families, for comparison and training: fills by default use none of them.

They are built by name through `geonp.nn.models`. They may import `nn`.
"""
