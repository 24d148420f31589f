"""A store directory as seen by tools and other processes. A running broker imports only ``indexbuild`` from here, and
of ``compactor`` what it says to its process.

Must not know the broker.
"""
