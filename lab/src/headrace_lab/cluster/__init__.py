"""Groups of replicas over a simulated network, clock and disk. Start at `cluster`."""
