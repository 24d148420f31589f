"""The sections of the console: one module a noun, with its views and its changes.

Must not know who is in, nor how a page is reached.
"""
