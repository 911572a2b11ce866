"""Conditions on rows, as users write them: `amount > 10 and customer = 'ann'`."""
