"""What a broker decides, over a store, a clock and sessions: no sockets, no event loop.

``Broker`` (broker.py) is the whole; every other module is one noun of it. Facts: RocketMQ's BrokerController
and the processors it registers.
"""
