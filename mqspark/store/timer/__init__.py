"""Timer messages: the wheel, its log and their files."""
