"""kernbench as a library: calls that simulate, and results that are plain data."""
