"""One module a verb of `headrace`; `cli/verbs.py` lists them."""
