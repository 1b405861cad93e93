"""Shipped checkpoints: safetensors weights, each with its JSON card."""
