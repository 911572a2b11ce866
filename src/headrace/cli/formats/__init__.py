"""Reads and writes rows in files: NDJSON, CSV, Parquet and Arrow. Start at `formats`."""
