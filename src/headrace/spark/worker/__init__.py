"""The code that runs on executors. It needs only the standard library and pyarrow."""
