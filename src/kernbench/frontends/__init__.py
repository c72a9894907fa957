"""Programs that were written for another machine, as they are."""
