"""Writes to topics and tables with Spark. Start at `data_sink`."""
