"""``python -m virgo.cli``."""

import sys

from virgo.cli import main

sys.exit(main())
