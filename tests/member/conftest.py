"""Makes the stage and the simulated group importable for this room's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
