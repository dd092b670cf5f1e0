"""Which page should leave first: eviction policies on a real trace, beside the offline optimum."""
