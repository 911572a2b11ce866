"""`headrace status`: a node's figures, which are also the JSON, and its views."""
