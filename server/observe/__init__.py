"""What operators see of a running server: its logs and its metrics."""
