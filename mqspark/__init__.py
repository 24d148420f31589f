"""mqspark: Apache RocketMQ's architecture in Python, native to Spark."""

__version__ = "0.1.0"
