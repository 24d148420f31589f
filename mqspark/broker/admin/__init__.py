"""What tools ask and change. Nothing but ``broker`` imports it."""
