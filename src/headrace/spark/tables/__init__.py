"""What a Delta table records of its log, and who may write to it. Start at `table_record`."""
