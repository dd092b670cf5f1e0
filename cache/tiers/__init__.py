"""The tiers: where pages lie."""
