"""`python -m plait.live.service`."""

import sys

from plait.live.service.main import main

sys.exit(main())
