"""Terminal views of results: pure functions from the agent's answers and events to text."""
