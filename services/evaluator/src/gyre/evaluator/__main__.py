"""python -m gyre.evaluator"""

from gyre.adapters.runtime import service_main
from gyre.evaluator.bootstrap import main
from gyre.evaluator.settings import EvaluatorSettings

service_main(main, EvaluatorSettings, service="evaluator")
