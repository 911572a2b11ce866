"""Every setting, once; layers and checks. Start at `settings`."""
