"""The controller's side of the agent: packing it, putting it on the host, calling its verbs."""
