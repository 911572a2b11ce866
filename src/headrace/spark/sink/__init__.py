"""Writing with Spark, into topics and tables. Start at `data_sink`."""
