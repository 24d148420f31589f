"""The job server: Spark jobs as processes, at the times of a settings file.

Must not know what a job does: it sees command lines, exit codes and the one line of JSON that a job prints.
"""
