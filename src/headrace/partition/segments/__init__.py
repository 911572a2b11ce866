"""Parquet segments, with their writers and readers. Start at `segment`."""
