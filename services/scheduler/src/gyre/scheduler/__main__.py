"""python -m gyre.scheduler"""

from gyre.adapters.runtime import service_main
from gyre.scheduler.bootstrap import main
from gyre.scheduler.settings import SchedulerSettings

service_main(main, SchedulerSettings, service="scheduler")
