"""What a trainer answers instead of a result. `kind` is the class a caller decides by."""

from __future__ import annotations

from typing import ClassVar


class TrainerError(Exception):
    """Root of the trainer's refusals: state is as before the command unless the class says more."""

    kind: ClassVar[str] = "trainer_error"


class BadCommand(TrainerError):
    """The command is unknown, lacks an argument or has one of a wrong type."""

    kind = "bad_command"


class BadModel(TrainerError):
    """The model directory is not one this trainer can read."""

    kind = "bad_model"


class NoGpu(TrainerError):
    """A GPU is here, and this rank cannot have it."""

    kind = "no_gpu"


class WrongState(TrainerError):
    """The command does not fit what the trainer holds: no batch open, other batch, no world."""

    kind = "wrong_state"


class WrongVersion(TrainerError):
    """The weights held are not those the command names."""

    kind = "wrong_version"


class BadMicroStep(TrainerError):
    """The micro-step cannot be read, or its arrays contradict one another."""

    kind = "bad_micro_step"


class BodyUnavailable(TrainerError):
    """Who serves the micro-step's bytes was away until the deadline. They may be had later."""

    kind = "body_unavailable"


class PeerLost(TrainerError):
    """A member died or did not come in time. The accumulation is dropped and the world is gone:
    form_world with a new epoch, begin_batch, and do the batch's micro-steps again."""

    kind = "peer_lost"


class StageLost(TrainerError):
    """Another rank of this cell is gone, and with it what the ranks compute together: this process
    is of no use any more."""

    kind = "stage_lost"


class MembersDisagree(TrainerError):
    """Members hold other weights or another batch than the core; no gradient was reduced."""

    kind = "members_disagree"


class WeightsUnavailable(TrainerError):
    """The weight server holds another version, or what came does not match its digest."""

    kind = "weights_unavailable"


class CheckpointError(TrainerError):
    """The checkpoint is missing, damaged, not to be written, or another one is already there."""

    kind = "checkpoint_error"


class NoMemory(TrainerError):
    """There is no room for what is to be moved, on the device or where it is kept meanwhile."""

    kind = "no_memory"


class NoSpace(CheckpointError):
    """The checkpoint does not fit on its disk; nothing of it is there."""

    kind = "no_space"
