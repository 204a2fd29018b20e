"""python -m gyre.cell_agent: the agent of cell GYRE_CELL, or of one of its other nodes."""

import sys

from gyre.adapters.runtime import run_service
from gyre.adapters.settings import SettingsError, load_settings
from gyre.cell_agent.bootstrap import main
from gyre.cell_agent.settings import CellAgentSettings

try:
    settings = load_settings(CellAgentSettings)
except SettingsError as error:
    sys.stderr.write(f"cell-agent: {error}\n")
    sys.exit(2)
sys.exit(run_service(main, settings, service=settings.own_name))
