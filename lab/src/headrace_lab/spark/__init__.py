"""Kills at named moments around Spark, and what must hold after them. Start at `run`."""
