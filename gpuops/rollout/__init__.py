"""From a playbook to an order (`desired`), what it would do (`plan`), and following it (`session`, `watch`)."""
