"""Our rate beside the machine's own limit and beside what users would take instead.

Start at `registry`.
"""
