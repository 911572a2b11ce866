"""`headrace status`: a node in figures, which are the JSON, and its views."""
