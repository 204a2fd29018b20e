"""`python -m gyre.cell_agent.trainer`: one rank of a cell's trainer.

Consumes: commands on its control socket, one at a time, on one thread; micro-steps by path.
Produces: answers; checkpoints; weights over TCP on threads that touch no tensor.
Waits for: the next command; in one that computes, for the cell's other ranks; in finish_batch, for
the other members of the batch's prefix.
Is unblocked by: a member's death (at once), the world's time-out, the control socket's end.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from gyre.adapters.logging import configure_logging
from gyre.cell_agent.process_memory import keep_one_heap
from gyre.cell_agent.trainer.errors import TrainerError
from gyre.cell_agent.trainer.process.control import end_with_agent, open_control, refuse, serve
from gyre.cell_agent.trainer.process.launch import own_devices, read_command


def main(arguments: Sequence[str] | None = None) -> int:
    launch, place = read_command(arguments)
    configure_logging("trainer", "WARNING")
    control = open_control(place)
    ended = end_with_agent(control)
    os.nice(launch.nice)
    keep_one_heap()
    try:
        os.environ.update(own_devices(os.environ, launch.local_rank))
        import torch

        torch.set_num_threads(launch.threads)
        from gyre.cell_agent.trainer.commands import TrainerCommands
        from gyre.cell_agent.trainer.device import own_device
        from gyre.cell_agent.trainer.ranks.meeting import join_cell

        device = own_device()
        join_cell(launch, device)
        commands = TrainerCommands(launch, device)
    except TrainerError as error:
        ended.set()
        sys.stderr.write(f"trainer of cell {launch.cell}: {error}\n")
        refuse(control, error)
        return 2
    serve(control, commands, ended)
    return 0


if __name__ == "__main__":
    # megatron says on import which CUDA extras are absent; on a CPU that is no news.
    warnings.filterwarnings("ignore", module="megatron")
    sys.exit(main())
