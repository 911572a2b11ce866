"""Reading a topic with Spark. Start at `data_source`."""
