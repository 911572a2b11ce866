"""The Python client: logs, topics, producers and consumers, embedded or remote.

Start at `public`.
"""
