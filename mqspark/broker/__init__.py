"""The broker's decisions, over a store, a clock and sessions. No sockets, no event loop.

``BrokerCore`` (broker.py) is the entry point; each other module covers one subject. Source: RocketMQ's
BrokerController and the processors that it registers.
"""
