"""What runs on executors: the standard library and pyarrow alone."""
