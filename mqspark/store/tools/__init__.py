"""A directory as tools and other processes see it. A running broker imports nothing from here but ``indexbuild``."""
