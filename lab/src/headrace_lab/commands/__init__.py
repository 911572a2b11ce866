"""The verbs of the lab, and what makes the pages of the command."""
