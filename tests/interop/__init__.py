"""Unmodified clients, tools and brokers of RocketMQ beside ours."""
