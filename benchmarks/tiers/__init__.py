"""The tiers against what bounds them (memcpy, the disk) and against others' tiers on the same disk."""
