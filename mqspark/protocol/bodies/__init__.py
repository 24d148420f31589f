"""The JSON bodies of requests and responses, one class for each RocketMQ body class in use.

Attributes are in snake case, wire names in camel case. Absent and null both mean the default. Unknown members are
ignored. Enumerations are plain text; the names are in ConsumeType, MessageModel and ConsumeFromWhere.

Must not know how requests and responses are used.
"""
