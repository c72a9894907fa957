"""The machine and a run as one self-contained HTML file for the browser."""
