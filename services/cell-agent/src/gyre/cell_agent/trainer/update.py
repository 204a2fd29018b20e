"""The end of a batch: gradients summed over the prefix, one update on the core, the new parameters
exchanged.

Invariants:
- what is reduced over is a prefix of the world's ranks, all with the same weights and batch;
- the core alone updates, once, and what a record refuses is not applied but counts as a version;
- after PeerLost there is no world and no open batch: nothing half reduced can be stepped on;
- weights that came half way have no name: `held` is None until the last bucket is in.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from gyre.adapters.failpoints import failpoint
from gyre.cell_agent.trainer.batch.accumulation import Accumulation
from gyre.cell_agent.trainer.batch.batch_record import BatchRecord, merged
from gyre.cell_agent.trainer.buckets import flat_buckets, scatter
from gyre.cell_agent.trainer.carriers import FinishedBatch, WeightsName
from gyre.cell_agent.trainer.errors import MembersDisagree, PeerLost, WrongState
from gyre.cell_agent.trainer.model.finalize import finalize_gradients, gradient_buffers
from gyre.cell_agent.trainer.optimizer import Update
from gyre.cell_agent.trainer.ranks.world import CORE_RANK, CellWorld, PrefixGroup
from gyre.cell_agent.trainer.trainer import MegatronTrainer


def finish_batch(
    trainer: MegatronTrainer, *, members: Sequence[int], epoch: int, final: bool
) -> FinishedBatch:
    """Sums gradients over the prefix; the core clips and steps once; unless `final`, members
    receive the parameters. Closes the batch however it ends.

    Raises PeerLost, MembersDisagree, WrongState; BadMicroStep, StageLost: the batch can only be
    dropped.
    """
    held = trainer.require_held()
    trainer.require_open_batch()
    world = _world_of(trainer, epoch)
    group, is_core = world.prefix(members), world.rank == CORE_RANK
    batch = trainer.finish_accumulation()
    failpoint("trainer.before_reduce")
    try:
        record = _reduce(trainer, batch, held, group)
        trainer.open = None
        update = _update(trainer, held, record) if is_core else None
        lost = _exchange_parameters(trainer, group, held, is_core) if not final else None
    except PeerLost:
        trainer.leave_world()
        raise
    except MembersDisagree:
        trainer.drop_accumulation()
        raise
    return FinishedBatch(
        version=held.version + 1,
        record=record,
        update=update,
        lost=lost,
        num_warmups=batch.num_warmups,
    )


def _world_of(trainer: MegatronTrainer, epoch: int) -> CellWorld:
    world = trainer.world
    if world is None or world.epoch != epoch:
        found = "no world" if world is None else f"epoch {world.epoch}"
        raise WrongState(f"epoch {epoch} is named, this cell is in {found}")
    return world


def _reduce(
    trainer: MegatronTrainer, batch: Accumulation, held: WeightsName, group: PrefixGroup
) -> BatchRecord:
    """A member that claimed nothing enters with zeros: begin_batch left its buffers so."""
    if not group.agrees([held.version, held.lineage, zlib.crc32(batch.batch.encode())]):
        raise MembersDisagree(
            f"not all members hold version {held.version} of lineage {held.lineage} "
            f"in batch {batch.batch}"
        )
    record = merged(group.gather(batch.record.to_bytes()))
    group.sum_(gradient_buffers(trainer.model))
    return record


def _update(trainer: MegatronTrainer, held: WeightsName, record: BatchRecord) -> Update:
    refusal = record.refusal(trainer.require_settings().max_mismatch)
    finalize_gradients(trainer.model)
    update = trainer.core_optimizer().update(refusal)
    failpoint("trainer.after_update")
    trainer.held = WeightsName(version=held.version + 1, lineage=held.lineage)
    return update


def _exchange_parameters(
    trainer: MegatronTrainer, group: PrefixGroup, held: WeightsName, is_core: bool
) -> str | None:
    """On the core a peer's death is no failure of the step: it returns the reason."""
    failpoint("trainer.before_broadcast")
    try:
        if not is_core:
            # Half received they are no version at all; a death below leaves it at that.
            trainer.held = None
        for flat, parameters in flat_buckets(trainer.parameters.values()):
            group.broadcast_([flat])
            if not is_core:
                scatter(flat, parameters)
        trainer.held = WeightsName(version=held.version + 1, lineage=held.lineage)
        return None
    except PeerLost as error:
        if not is_core:
            raise
        trainer.leave_world()
        return str(error)
