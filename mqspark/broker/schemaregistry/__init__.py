"""The schema registry of a cluster: what one broker keeps in a system topic, and answers as Confluent's registry does.

Must not know HTTP, nor the ``BrokerCore`` that registers its handlers.
"""
