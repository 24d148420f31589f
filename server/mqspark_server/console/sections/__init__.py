"""The sections of the console: one module a noun, with its views and its changes.

Imported from outside: ``clusterpages``, ``delayedpages``, ``grouppages``, ``jobpages``, ``letterpages``,
``messagepages``, ``schemapages``, ``setasidepages``, ``sparkpages``, ``tablepages``, ``topicpages``, ``userpages``.
Must not know who is in, nor how a page is reached.
"""
