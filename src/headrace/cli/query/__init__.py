"""`headrace read`: which rows, which columns, and how they are printed."""
