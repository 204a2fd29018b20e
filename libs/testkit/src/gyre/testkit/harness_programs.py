"""The agent programs that plays are written for: how each calls its shell, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gyre.testkit.harness_script import Scene, tool_call

WRITE = "printf 'seven 7' > answer.txt; "


def step(number: int, command: str = "") -> str:
    """A shell command whose result, not whose text, holds STEP-<number>."""
    return f"{command}echo STEP-$(({number - 1}+1))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """name: of its profile. shell: a turn that runs a command. end: what is said once the task is
    done."""

    name: str
    shell: Callable[[str], str]
    end: str = "Done."

    def step(self, number: int, command: str = "") -> str:
        """A turn whose result holds STEP-<number>."""
        return self.shell(step(number, command))

    def done(self, number: int = 9) -> Scene:
        """The last scene, after STEP-<number>."""
        return Scene(cue=f"STEP-{number}", says=self.end)

    def two_turns(self, first: str, *, holds_after: int | None = None) -> tuple[Scene, ...]:
        """`first`, whose result has to hold STEP-2, then the turn that does the task."""
        says = "I write it down. " + self.step(9, WRITE)
        return (
            Scene(cue="TASK-1", says=first),
            Scene(cue="STEP-2", says=says, holds_after=holds_after),
            self.done(),
        )


CLAUDE_CODE = Program(name="claude-code", shell=lambda command: tool_call("Bash", command=command))
CODEX = Program(name="codex", shell=lambda command: tool_call("exec_command", cmd=command))
# It ends with this command alone, and only then.
MINI_SWE_AGENT = Program(
    name="mini-swe-agent",
    shell=lambda command: tool_call("bash", command=command),
    end=tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
)
PROGRAMS = {program.name: program for program in (CLAUDE_CODE, CODEX, MINI_SWE_AGENT)}
