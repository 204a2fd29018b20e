#!/usr/bin/env python3
"""import-linter under this interpreter: its own script runs under the shared environment's."""

from __future__ import annotations

import sys

from importlinter.cli import lint_imports_command

if __name__ == "__main__":
    sys.exit(lint_imports_command())
