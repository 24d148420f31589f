"""The push consumer: listeners called in order or concurrently."""
