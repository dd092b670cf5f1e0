"""What the whole system does for users, on real engines."""
