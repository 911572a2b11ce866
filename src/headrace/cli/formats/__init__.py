"""Rows from and to files: NDJSON, CSV, Parquet and Arrow. Start at `formats`."""
