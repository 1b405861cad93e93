"""Training recipes: TOML files, described in README.md beside them."""
