"""What operators change, each declared once: its parameters, what it would change, the change, and why not.

Must not know who asks: a command, a page or HTTP, which read the parameters and show the rest. A server
judges who may.
"""
