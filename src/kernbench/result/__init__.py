"""The outcome of a run: typed sections, and the forms derived from them."""
