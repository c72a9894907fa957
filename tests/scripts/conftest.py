"""Put ``scripts`` on the path: its modules import each other by their own names."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
