"""Static topics: topics whose number of queues stays the same while their queues move between brokers.

A client of a static topic addresses *logic queues*. Each consists of parts, which lie in physical queues of one broker
or several; the last part is written to. The broker of the last part, the leader, answers all requests about the logic
queue and asks the brokers of the earlier parts.

Must not know which requests there are, nor sockets.

Facts: docs/rocketmq/statictopics.md.
"""
