"""What one cell must do next, from the job's facts and from what its own processes hold.

`evolve_cell` folds facts, `next_duty` compares them with `Holdings`; the agent performs the duty,
updates the holdings, and says what came of it as another fact.
"""

from gyre.core.cell.duties import next_duty
from gyre.core.cell.evolve import evolve_cell
from gyre.core.cell.orders import Duty
from gyre.core.cell.state import CellState, Holdings

__all__ = ["CellState", "Duty", "Holdings", "evolve_cell", "next_duty"]
