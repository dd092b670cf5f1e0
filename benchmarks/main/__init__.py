"""What the gateway adds to a request: `python -m benchmarks.main`, one module a scenario.

Every figure stands next to the same one of the plainest passthrough and of vllm-router, measured in turns in
one run: the server under test has core 1 for itself, the load and the mock backends share core 0.
"""
