"""A script that engines play instead of sampling: which turn follows what a program has said last.

A turn is chosen by what stands between the turn before and the end of the prompt; what a prompt
ends with beyond that is taken for a part of the turn, sampled before. So no engine holds state that
a call depends on: several play one script, and each goes on where another was cut off.

What became of it lies in files, so that engines may be processes of their own and be killed:

    <play>/script.json      model and scenes
    <play>/played.jsonl     one line a request that had a scene
    <play>/surprises.jsonl  ends of prompts that had none
    <play>/claimed-<n>      scene n has stood still, or is about to
    <play>/held-<n>         its tokens are out and it waits
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

from gyre.proxy.codecs.tokenizer import FastTokenizer
from gyre.testkit.execution_world import until
from gyre.testkit.tiny_model import train_bpe

# Where a process finds its play, if no argument says it.
PLAY_VARIABLE = "GYRE_PLAY"
END = "<|im_end|>"
VOCABULARY = 6000
_OPENING = "<|im_start|>assistant\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One turn. cue: the scene is played when its cue is the last one that stands between the turn
    before and the end of the prompt. says: the turn's text, its end is added. holds_after: so many
    tokens are streamed, then the engine waits until it is told something; only once."""

    cue: str
    says: str
    holds_after: int | None = None


def tool_call(name: str, **arguments: Any) -> str:
    """A tool call as a Qwen3 model says it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def raw_tool_call(text: str) -> str:
    """As `tool_call`, with the very text of its JSON."""
    return f"<tool_call>\n{text}\n</tool_call>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one request was due. whole: the turn's tokens. kept: how many it brought along. engine:
    who played it."""

    cue: str
    whole: tuple[int, ...]
    kept: int
    engine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The scene for a prompt, its tokens, and how many of them the prompt has already."""

    scene: Scene
    tokens: tuple[int, ...]
    kept: int


class Play:
    """A script and what became of it. Any number of processes may hold the same one."""

    def __init__(self, directory: Path, model: Path, scenes: Sequence[Scene]) -> None:
        self.directory = directory
        self.scenes = tuple(scenes)
        self._tokenizer = FastTokenizer(model)
        self._opening = self._tokenizer.encode(_OPENING)
        self._end = self._tokenizer.convert_tokens_to_ids(END)

    @classmethod
    def write(cls, directory: Path, model: Path, scenes: Sequence[Scene]) -> Play:
        """A new one."""
        directory.mkdir(parents=True)
        script = {"model": str(model), "scenes": [asdict(scene) for scene in scenes]}
        (directory / "script.json").write_text(json.dumps(script))
        return cls(directory, model, scenes)

    @classmethod
    def load(cls, directory: Path) -> Play:
        """One that somebody wrote."""
        script = json.loads((directory / "script.json").read_text())
        scenes = [Scene(**scene) for scene in script["scenes"]]
        return cls(directory, Path(script["model"]), scenes)

    @property
    def played(self) -> list[Played]:
        """In the order in which they began."""
        lines = self._lines("played.jsonl")
        return [Played(**(line | {"whole": tuple(line["whole"])})) for line in lines]

    @property
    def surprises(self) -> list[str]:
        """Ends of prompts that had no cue."""
        return [str(line) for line in self._lines("surprises.jsonl")]

    def unplayed(self) -> list[str]:
        """Cues that never came."""
        came = {each.cue for each in self.played}
        return [scene.cue for scene in self.scenes if scene.cue not in came]

    def turn(self, prompt: Sequence[int], engine: str, max_new_tokens: int) -> Turn | None:
        """What a prompt is due, written down; None, which is written down too, if nothing."""
        ids = list(prompt)
        start = _rfind(ids, self._opening, len(ids))
        since = self._tail(ids, start)
        at, scene = max(
            ((since.rfind(scene.cue), scene) for scene in self.scenes), key=lambda place: place[0]
        )
        if at < 0:
            self._note("surprises.jsonl", since[-2000:])
            return None
        tokens = self._tokenizer.encode(scene.says + END)
        kept = ids[start + len(self._opening) :]
        if kept != tokens[: len(kept)]:
            self._note("surprises.jsonl", f"{scene.cue}: the prompt brings other tokens along")
            return None
        whole = tuple(tokens[: len(kept) + max_new_tokens])
        played = Played(cue=scene.cue, whole=whole, kept=len(kept), engine=engine)
        self._note("played.jsonl", asdict(played))
        return Turn(scene=scene, tokens=whole, kept=len(kept))

    def holds(self, scene: Scene) -> bool:
        """Whether the scene stands still here: the first time it is played."""
        if scene.holds_after is None:
            return False
        try:
            (self.directory / f"claimed-{self.scenes.index(scene)}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def stands_still(self, scene: Scene) -> None:
        """Its tokens are out."""
        (self.directory / f"held-{self.scenes.index(scene)}").touch()

    async def until_held(self, cue: str = "", deadline_s: float = 120.0) -> None:
        """Waits until the scene of `cue` stands still, any if none is named."""
        names = [f"held-{i}" for i, scene in enumerate(self.scenes) if cue in ("", scene.cue)]

        async def held() -> bool:
            return any((self.directory / name).exists() for name in names)

        await until(held, deadline_s)

    def _tail(self, ids: list[int], start: int) -> str:
        """What was said since the end of the turn before."""
        before = _rfind(ids, self._opening, start)
        if before < 0:
            return self._tokenizer.decode(ids[:start])
        closed = ids.index(self._end, before, start) if self._end in ids[before:start] else before
        return self._tokenizer.decode(ids[closed + 1 : start])

    def _lines(self, name: str) -> list[Any]:
        path = self.directory / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _note(self, name: str, line: object) -> None:
        """In one write: several processes append."""
        with (self.directory / name).open("a") as stream:
            stream.write(json.dumps(line) + "\n")


def make_script_model(directory: Path) -> Path:
    """A model's directory with a tokenizer and no weights: what the proxy needs. It is trained on
    English and code that come with Python, which no change of this repository alters: so prompts
    have about four characters a token, and always the same number."""
    texts = [*topics.topics.values(), *map(inspect.getsource, (argparse, subprocess, typing))]
    tokenizer = train_bpe(texts, VOCABULARY)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


def _rfind(ids: Sequence[int], part: Sequence[int], before: int) -> int:
    """Where `part` stands last in `ids[:before]`; below 0 if nowhere."""
    for start in range(before - len(part), -1, -1):
        if ids[start] == part[0] and list(ids[start : start + len(part)]) == list(part):
            return start
    return -1
