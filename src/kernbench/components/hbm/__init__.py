"""HBM slices: the layout of addresses, the timing of banks, and the arbitration between requesters."""
