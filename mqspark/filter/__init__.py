"""Which messages a subscription takes."""
