"""`headrace demo`: kills node, producers and pipeline, then compares everything."""
