"""python -m gyre.runner"""

from gyre.adapters.runtime import service_main
from gyre.runner.bootstrap import main
from gyre.runner.settings import RunnerSettings

service_main(main, RunnerSettings, service="runner")
