"""Settings, config layers and validation. Start at `settings`."""
