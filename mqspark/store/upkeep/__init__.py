"""What a running store does beside serving: checkpoints and retention."""
