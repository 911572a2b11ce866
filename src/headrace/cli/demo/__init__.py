"""`headrace demo`: node, producers and pipeline are killed, then everything is compared."""
