"""Half messages and what becomes of them."""
