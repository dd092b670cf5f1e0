"""The `hpkv` command."""
