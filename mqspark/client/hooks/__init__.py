"""A program's own code around sends and listeners, and message trace, which is made of it."""
