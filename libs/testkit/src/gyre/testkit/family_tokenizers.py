"""A tokenizer of a few hundred entries for any model family that is served: a byte-level BPE with
the control tokens that the family's template is made of."""

from __future__ import annotations

from pathlib import Path

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_THINK = ("<think>", "</think>")
_CALL = ("<tool_call>", "</tool_call>")
_RESULT = ("<tool_response>", "</tool_response>")
_ARGUMENTS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")

_QWEN = (*_CHATML, *_THINK, *_CALL, *_RESULT, *_VISION)
_GLM = (
    *("[gMASK]", "<sop>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>"),
    *("<|observation|>", *_THINK, *_CALL, *_RESULT, *_ARGUMENTS),
)
_KIMI = (
    *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", *_THINK),
    *("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"),
)
_LLAMA = (
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|end_of_text|>", "<|eom_id|>", "<|python_tag|>"),
)
_HY = (
    *("<｜hy_begin_of_sentence:opensource｜>", "<｜hy_eos:opensource｜>"),
    *("<｜hy_User:opensource｜>", "<｜hy_Assistant:opensource｜>"),
    *("<｜reasoning_mode:opensource｜>", "<think:opensource>", "</think:opensource>"),
    *("<tool_calls:opensource>", "</tool_calls:opensource>", "<tool_sep:opensource>"),
    *("<tool_call:opensource>", "</tool_call:opensource>"),
    *("<arg_key:opensource>", "</arg_key:opensource>"),
    *("<arg_value:opensource>", "</arg_value:opensource>"),
    *("<tool_responses:opensource>", "</tool_responses:opensource>"),
    *("<tool_response:opensource>", "</tool_response:opensource>"),
)
_INKLING = (
    *("<|message_user|>", "<|message_model|>", "<|message_system|>", "<|message_tool|>"),
    *("<|content_text|>", "<|content_thinking|>", "<|content_image|>", "<|content_xml|>"),
    *("<|content_audio_input|>", "<|content_invoke_tool_json|>"),
    *("<|content_invoke_tool_text|>", "<|content_model_end_sampling|>", "<|end_message|>"),
    *("<|audio_end|>", "<|unused_200054|>", "<|unused_200053|>", "<|endoftext|>"),
)
_MINIMAX = ("]~!b[", "]~b]", "[e~[", *_THINK, "<minimax:tool_call>", "</minimax:tool_call>")
_LAGUNA = ("〈|EOS|〉", *_THINK, "<assistant>", "</assistant>", *_CALL)

_HARMONY = (
    *("<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>"),
    *("<|start|>", "<|end|>", "<|message|>", "<|call|>", "<|endofprompt|>"),
)
_GEMMA = (
    *("<pad>", "<eos>", "<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"),
    *("<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>"),
    *("<tool_response|>", '<|"|>', "<|image>", "<|image|>", "<image|>"),
)
_DEEPSEEK = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>"),
    *("<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
)
_DEEPSEEK_V4 = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *("<｜latest_reminder｜>", "｜DSML｜", "<｜action｜>", "<｜query｜>", "<｜authority｜>"),
    *("<｜domain｜>", "<｜title｜>", "<｜read_url｜>", *_THINK),
)

_OF = {
    "qwen": _QWEN,
    "prime-qwen": _QWEN,
    "nemotron": _QWEN,
    "glm": _GLM,
    "kimi": _KIMI,
    "minimax": _MINIMAX,
    "llama": _LLAMA,
    "hy3": _HY,
    "laguna": _LAGUNA,
    "inkling": _INKLING,
    "gpt-oss": _HARMONY,
    "gemma": _GEMMA,
    "deepseek-v3": _DEEPSEEK,
    "deepseek-r1": (*_DEEPSEEK, *_THINK),
    "deepseek-v4": _DEEPSEEK_V4,
}

# Line breaks in many a place: real vocabularies join them with each other and with what is around.
_CORPUS = (
    "Yes.\n\nNo.\n\n\nSo:\n\n\n\nuser\n\nassistant\n>\n\n>\n</\n\n</ hm\n x\n\n\t}\n\n})\n\n",
    "the quick brown fox jumps over the lazy dog. hello world, user assistant system tool",
    "You are a helpful assistant. Write the sum of 3 and 4 into answer.txt",
    '{"name": "write_file", "arguments": {"path": "answer.txt", "content": "7"}}',
    "<function=write_file>\n<parameter=path>\nanswer.txt\n</parameter>\n</function>",
)


def control_tokens(family: str) -> tuple[str, ...]:
    """What the family's template is made of. Raises KeyError for one that is not known here."""
    start = max((start for start in _OF if family.startswith(start)), key=len, default=family)
    return _OF[start]


def make_family_tokenizer(directory: Path | str, family: str, vocab_size: int = 600) -> Path:
    """Writes tokenizer.json and returns `directory`. Deterministic, since its corpus is fixed."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r"\w+| ?[^\s\w]+\n*|\s+"), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(control_tokens(family)),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(list(_CORPUS) * 50, trainer)
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    bpe.save(str(path / "tokenizer.json"))
    return path


class FamilyFiles:
    """Tokenizers of families below one directory, made when they are asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[tuple[str, ...], Path] = {}

    def of(self, family: str) -> Path:
        """Families with the same control tokens share one."""
        controls = control_tokens(family)
        if controls not in self._made:
            self._made[controls] = make_family_tokenizer(self._directory / family, family)
        return self._made[controls]
