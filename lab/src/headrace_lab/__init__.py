"""What breaks and measures Headrace: simulator, harnesses, chaos and benches."""
