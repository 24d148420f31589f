"""The slaves of a master."""
