"""RocketMQ's gRPC clients of other languages than Java."""
