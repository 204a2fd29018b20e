"""A run as one file: what goes in comes out, what was changed is refused, secrets stay behind."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from gyre.adapters.archive import (
    ArchiveError,
    Header,
    Hider,
    read_archive,
    read_facts,
    read_header,
    write_archive,
)
from gyre.adapters.journal import Fact
from gyre.adapters.keys import KeyIdentity, make_key
from gyre.contracts.codec import make_envelope
from gyre.contracts.envelope import Body
from gyre.contracts.events import calls as call_events
from gyre.contracts.events import cells as cell_events
from gyre.contracts.events import requests as request_events


def _fact(sequence: int, body: Body, job: str = "j") -> Fact:
    envelope = make_envelope(
        body, identity=f"{sequence:032x}", job=job, aggregate="facts.j.x", time=1.5, causation="c"
    )
    return Fact(sequence=sequence, envelope=envelope)


FACTS = [
    _fact(3, request_events.CancelRequested(reason="because")),
    _fact(7, cell_events.EngineLost(cell=1, error='a "quoted" word, ünïcode')),
]
CALLS = [_fact(5, call_events.CallsSealed(execution="e", num_calls=2, last_seq=4))]


async def _stream(facts: Iterable[Fact]) -> AsyncIterator[Fact]:
    for fact in facts:
        yield fact


def _write(
    path: Path, facts: Iterable[Fact] = FACTS, calls: Iterable[Fact] = CALLS, hide: str = ""
) -> tuple[Header, Hider]:
    hider = Hider((hide,))
    header = asyncio.run(
        write_archive(
            path,
            job="j",
            release="1",
            facts=_stream(facts),
            calls=_stream(calls),
            hider=hider,
        )
    )
    return header, hider


def _lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def _rewrite(path: Path, lines: Iterable[bytes]) -> None:
    path.write_bytes(gzip.compress(b"".join(lines)))


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    header, hider = _write(path)
    assert read_header(path) == header
    assert (header.job, header.num_facts, header.num_calls, hider.num) == ("j", 2, 1, 0)
    assert list(read_archive(path)) == [
        ("facts", FACTS[0]),
        ("facts", FACTS[1]),
        ("calls", CALLS[0]),
    ]
    assert list(read_facts(path)) == FACTS
    assert [file.name for file in tmp_path.iterdir()] == ["run.jsonl.gz"]


def test_every_line_is_json_with_the_envelope_in_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    _write(path)
    head, *lines = [json.loads(line) for line in _lines(path)]
    assert head["gyre_run"] == 1
    assert [(line["stream"], line["sequence"]) for line in lines] == [
        ("facts", 3),
        ("facts", 7),
        ("calls", 5),
    ]
    assert lines[0]["event"]["body"] == {"reason": "because"}


def test_equal_runs_are_equal_files(tmp_path: Path) -> None:
    _write(tmp_path / "a")
    _write(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_any_change_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    _write(path)
    lines = _lines(path)
    for changed in (
        [lines[0], lines[1].replace(b"because", b"becuase"), *lines[2:]],
        [lines[0].replace(b'"release": "1"', b'"release": "2"'), *lines[1:]],
        [lines[0], lines[2], lines[1], lines[3]],
        [*lines[:2], lines[3], lines[2]],
        lines[:-1],
        [*lines, lines[3].replace(b'"sequence":5', b'"sequence":6')],
        [lines[0].replace(b'"num_calls": 1', b'"num_calls": 2'), *lines[1:]],
        [lines[0], lines[1].replace(b'"job":"j"', b'"job":"k"'), *lines[2:]],
        [lines[0], b'{"stream":"work","sequence":1,"event":{}}\n', *lines[2:]],
        [lines[0], lines[1].replace(b"cancel_requested", b"no_such_event"), *lines[2:]],
        [lines[0], b"x" * 3_000_000 + b"\n"],
        [*lines[:3], lines[3].rstrip(b"\n")],
    ):
        _rewrite(path, changed)
        with pytest.raises(ArchiveError):
            list(read_archive(path))


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    _write(path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 5):
        path.write_bytes(whole[:size])
        with pytest.raises(ArchiveError):
            list(read_archive(path))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no gzip", "cannot be read: Not a gzipped file"),
        (gzip.compress(b""), "its first line is no header"),
        (gzip.compress(b"[1]\n"), "no record of a run"),
        (gzip.compress(b'{"gyre_run": 2, "job": "j"}\n'), "another format: this release reads 1"),
        (gzip.compress(b'{"gyre_run": 1, "job": "../j"}\n'), "its first line is no header"),
        (gzip.compress(b'{"gyre_run": true}\n'), "no record of a run"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match=words):
        read_header(path)


def test_a_job_id_that_leaves_the_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl.gz"
    _write(path)
    lines = _lines(path)
    _rewrite(path, [lines[0].replace(b'"job": "j"', b'"job": "../j"'), *lines[1:]])
    with pytest.raises(ArchiveError, match="its first line is no header"):
        read_header(path)


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot be read: No such file or directory"):
        read_header(tmp_path / "none")


def test_keys_and_named_texts_stay_behind(tmp_path: Path) -> None:
    key = make_key("secret", KeyIdentity(job="j", execution="e-1", attempt=1))
    facts = [_fact(1, cell_events.EngineLost(cell=1, error=f'{key} in /home/"me"/x /home/"me"'))]
    path = tmp_path / "run.jsonl.gz"
    _, hider = _write(path, facts, [], hide='/home/"me"')
    assert hider.num == 3
    [(_, fact)] = read_archive(path)
    assert fact.body == cell_events.EngineLost(cell=1, error="[hidden] in [hidden]/x [hidden]")


@pytest.mark.parametrize("text", ["engine_lost", "facts"])
def test_hiding_what_an_event_is_known_by_writes_nothing(tmp_path: Path, text: str) -> None:
    facts = [_fact(1, cell_events.EngineLost(cell=1, error="e"))]
    with pytest.raises(ArchiveError, match="event 1: a text to hide is part of its form or ids"):
        _write(tmp_path / "run.jsonl.gz", facts, [], hide=text)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_read_to_its_end_leaves_no_file(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[Fact]:
        yield FACTS[0]
        raise ArchiveError("the log went away")

    with pytest.raises(ArchiveError, match="went away"):
        asyncio.run(
            write_archive(
                tmp_path / "run.jsonl.gz",
                job="j",
                release="1",
                facts=broken(),
                calls=_stream([]),
                hider=Hider(),
            )
        )
    assert list(tmp_path.iterdir()) == []
