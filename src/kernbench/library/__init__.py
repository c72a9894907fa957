"""kernbench as a library: calls that simulate, and results as plain data."""
