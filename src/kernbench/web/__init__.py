"""The machine and a run in the browser: one HTML file that needs nothing else."""
