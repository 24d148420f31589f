"""What a broker counts, and the rates and times made of it.

Imported from outside: ``meters``, ``puttimes``, ``rpctimes``, ``stats``. Must not know who counts.
"""
