"""Administration requests: queries and changes by tools. Only ``broker`` imports this package."""
