"""State shared by the processors: tables kept in ``config/``, connected clients, drafts, held answers, counters."""
