"""Builds on the laptop's side: reading a folder, and bringing it to the host."""
