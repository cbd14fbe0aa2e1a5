"""The pipe protocol of the two sides: one scenario per line in, one result per line out, in order."""

import faulthandler
import gc
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

from tests.oracle.scenario import Scenario

SECONDS_PER_SCENARIO = 20.0
"""A side stuck that long prints its stacks and exits; the reader sees which scenario got no answer."""


def serve(play: Callable[[Scenario], list[dict[str, Any]]]) -> None:
    """Answer every line on stdin."""
    warnings.simplefilter("error")
    # Cut streams: the base class of StreamedResponse nests four generators and closes none of them.
    warnings.filterwarnings("ignore", message="Async generator .* was garbage collected", category=ResourceWarning)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(SECONDS_PER_SCENARIO, exit=True)
        scenario = Scenario.model_validate_json(line)
        try:
            answer: Any = {"name": scenario.name, "runs": play(scenario)}
        except (Exception, BaseExceptionGroup) as error:
            answer = {"name": scenario.name, "crash": f"{type(error).__qualname__}: {error}"}
        print(json.dumps(answer), flush=True)
    faulthandler.cancel_dump_traceback_later()
    gc.collect()
