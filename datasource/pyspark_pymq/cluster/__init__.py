"""What options mean on a cluster: brokers, ranges of queues, history, typed topics."""
