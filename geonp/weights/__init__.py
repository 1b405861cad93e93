"""The checkpoints that ship with geonp, each a safetensors file beside its JSON card.

Data only: it may import nothing.
"""
