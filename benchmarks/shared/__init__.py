"""The shared stores against what bounds them, and against others' file-system tiers in the same folder."""
