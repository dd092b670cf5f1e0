"""What SGLang 0.5.23 needs on a CPU without AMX: a stand-in for its kernel package, attention over cached
prefixes, a host tier, and adapters without pinned memory.

`start` is imported whenever the environment's interpreter starts; `plugin` is loaded by SGLang itself.
"""
