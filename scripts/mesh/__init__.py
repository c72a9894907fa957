"""The reference mesh on the transport: its network, its load, and the comparison with a cycle-accurate simulator."""
