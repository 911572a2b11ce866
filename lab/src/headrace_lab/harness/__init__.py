"""What all harnesses share: campaigns, planted bugs, strikes. Start at `campaign`."""
