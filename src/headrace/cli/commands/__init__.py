"""One module per command of `headrace`; `cli/verbs.py` lists them."""
