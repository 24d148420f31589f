"""What a cluster has, asked over the wire in bounded numbers: its brokers, topics and groups as rows, with the names
that the command line gives them in JSON.

Imported from outside: ``brokersurvey``, ``groupsurvey``, ``messagesurvey``, ``replicasurvey``, ``schemasurvey``,
``surveying``, ``topicsurvey``, ``tracesurvey``. Must not know who shows them: a command, a page or a chart.
"""
