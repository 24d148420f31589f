"""The POP consumer."""
