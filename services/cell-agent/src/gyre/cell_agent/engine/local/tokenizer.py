"""The model's tokenizer: text prompts in, text out, stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from gyre.cell_agent.engine.local.config import read_json
from gyre.cell_agent.engine.local.errors import ModelFilesError
from gyre.cell_agent.engine.local.request import Finish, Request

INCOMPLETE_UTF8 = "\ufffd"


class TextCodec:
    """Wraps `tokenizer.json`; safe to use from several threads."""

    def __init__(self, directory: Path) -> None:
        file = directory / "tokenizer.json"
        if not file.exists():
            raise ModelFilesError(f"{file} does not exist")
        self._tokenizer = Tokenizer.from_file(str(file))
        self.eos_token_ids = frozenset(_eos_token_ids(directory, self._tokenizer))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text prompt."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Text of token ids."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def output_text(self, request: Request, ids: Sequence[int], finish: Finish | None) -> str:
        """What the client sees as `text` for the first `ids` of the output.

        A matched stop token or stop string is cut off unless `no_stop_trim`; while the
        request runs, a character whose bytes are not all there yet is held back.
        """
        sampling = request.asked.sampling
        matched = finish.matched if finish is not None else None
        if isinstance(matched, int) and not sampling.no_stop_trim:
            ids = ids[:-1]
        text = self.decode(ids, skip_special_tokens=sampling.skip_special_tokens)
        if isinstance(matched, str):
            position = text.find(matched)
            if position >= 0:
                text = text[: position + len(matched) if sampling.no_stop_trim else position]
        if finish is None:
            text = text.rstrip(INCOMPLETE_UTF8)
        return text

    def matched_stop_string(self, request: Request) -> str | None:
        """The first stop string that the end of the output completes, if any.

        A stop string of c characters spans at most c tokens when each token adds a
        character; a byte-level token may add none, hence the bytes of the string.
        """
        stops = request.asked.sampling.stop
        longest = max(len(stop.encode()) for stop in stops)
        tail = self.decode(request.output_ids[-longest - 1 :], skip_special_tokens=False)
        return next((stop for stop in stops if stop in tail), None)


def _eos_token_ids(directory: Path, tokenizer: Tokenizer) -> list[int]:
    """Id of `eos_token` in `tokenizer_config.json` (a string, or an object with `content`)."""
    file = directory / "tokenizer_config.json"
    if not file.exists():
        return []
    token = read_json(file).get("eos_token")
    content = token.get("content") if isinstance(token, dict) else token
    token_id = tokenizer.token_to_id(content) if isinstance(content, str) else None
    return [] if token_id is None else [token_id]
