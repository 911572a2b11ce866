"""The record of a pipeline in its Delta table, and its commits. Start at `table_record`."""
