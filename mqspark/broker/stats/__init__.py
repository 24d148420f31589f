"""What a broker counts, and the rates and times made of it.

Must not know who counts.
"""
