"""What a cluster has, asked over the wire in bounded numbers: its brokers, topics and groups as rows, with the names
that the command line gives them in JSON.

Must not know who shows them: a command, a page or a chart.
"""
