"""Connections to servers and what the members of one identity share. Knows no producer, no consumer."""
