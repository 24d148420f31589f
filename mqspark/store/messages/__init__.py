"""Messages into the log and the queues, and out of them."""
