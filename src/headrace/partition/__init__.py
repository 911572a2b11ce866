"""The partitions machine, and its rows on disk: segments and carry files.

Start at `shard_store`.
"""
