"""A local fleet: environments, a small model, engine replicas and the gateway as processes of one machine."""
