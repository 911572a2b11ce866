"""Parquet segments, and who writes and reads them. Start at `segment`."""
