"""Vendors' APIs, each a translation and no more: `base` says what one is, a file each does it."""
