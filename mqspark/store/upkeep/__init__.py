"""Background work of a running store: checkpoints and retention."""
