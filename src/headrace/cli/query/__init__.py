"""`headrace read`: selection and output of rows and columns."""
