"""What measurements mean: comparing blocks, and paired statistics. Pure; the measuring itself is done on the host."""
