"""`python -m memagent`, the same as the command `memagent`."""

import sys

from memagent.cli import main

sys.exit(main())
