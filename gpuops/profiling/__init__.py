"""Where a decode step's time goes: reading profiler traces (`trace`), adding them up by category (`summary`), comparing two (`compare`)."""
