"""Reads topics with Spark. Start at `data_source`."""
