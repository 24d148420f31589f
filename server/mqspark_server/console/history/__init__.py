"""Figures over time for the charts of the console: taken in the background, kept in memory.

Must not know a page or who looks at it.
"""
