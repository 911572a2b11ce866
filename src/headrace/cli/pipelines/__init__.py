"""`headrace pipeline reset`, `status` and `stop`."""
