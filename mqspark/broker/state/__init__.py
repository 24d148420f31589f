"""What the processors share: tables kept in ``config/``, who is connected, drafts, held answers, counters."""
