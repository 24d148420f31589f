"""Producers: messages on their way to brokers. Knows no consumer."""
