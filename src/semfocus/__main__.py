"""``python -m semfocus``: the same as the command ``semfocus``."""

import sys

from .cli import main

sys.exit(main())
