"""A store directory as seen by tools and other processes. A running broker imports only ``indexbuild`` from
here."""
