"""A module that ends who imports it."""

import sys

sys.exit(3)
