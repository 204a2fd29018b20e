"""Memory that one process fills and others of its host map."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gyre.cell_agent.weights.errors import CutOff
from gyre.cell_agent.weights.memory import Place, SharedMemory, host_name

CONTENT = bytes(range(256)) * 40


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_another_process_of_the_host_maps_what_was_filled() -> None:
    script = (
        "import sys; from gyre.cell_agent.weights.memory import Place, host_name; "
        "place = Place(process=int(sys.argv[1]), descriptor=int(sys.argv[2]), "
        "num_bytes=int(sys.argv[3])); "
        "print(host_name(), bytes(place.mapped()).hex())"
    )
    with SharedMemory() as memory:
        memory(len(CONTENT))[:] = CONTENT
        place = memory.place
        told = subprocess.run(
            [sys.executable, "-c", script]
            + [str(part) for part in (place.process, place.descriptor, place.num_bytes)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert told.stdout.split() == [host_name(), CONTENT.hex()]


def test_what_is_mapped_stays_after_the_one_who_filled_it_has_let_go() -> None:
    before = descriptors()
    with SharedMemory() as memory:
        memory(len(CONTENT))[:] = CONTENT
        place = memory.place
        mapped = place.mapped()
    assert bytes(mapped) == CONTENT
    with pytest.raises(CutOff):
        place.mapped()
    del mapped
    assert descriptors() == before


def test_what_one_writes_to_mapped_memory_nobody_else_reads() -> None:
    with SharedMemory() as memory:
        filled = memory(len(CONTENT))
        filled[:] = CONTENT
        memory.place.mapped()[0] = 255
        assert bytes(filled) == bytes(memory.place.mapped()) == CONTENT


def test_memory_made_again_is_what_others_map() -> None:
    before = descriptors()
    with SharedMemory() as memory:
        memory(10)[:] = b"cut off at"
        memory(4)[:] = b"anew"
        assert bytes(memory.place.mapped()) == b"anew"
    assert descriptors() == before


def test_memory_that_nobody_has_is_said() -> None:
    nowhere = Place(process=2**22 + 1, descriptor=3, num_bytes=1)
    with pytest.raises(CutOff, match=str(nowhere.process)):
        nowhere.mapped()
