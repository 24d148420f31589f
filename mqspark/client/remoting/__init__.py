"""Connections to servers, and what the members of one identity share.

Must not know producers and consumers.
"""
