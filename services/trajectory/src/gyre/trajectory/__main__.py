"""python -m gyre.trajectory"""

from gyre.adapters.runtime import service_main
from gyre.trajectory.bootstrap import main
from gyre.trajectory.settings import TrajectorySettings

service_main(main, TrajectorySettings, service="trajectory")
