"""gpt-oss: its renderer of `renderers` over the vocabulary of the model's own files.

That renderer has messages encoded by `openai_harmony`, which fetches a vocabulary, takes no other
one and has no way to encode without. `HarmonyText` writes the same messages in the same pieces, by
the model's tokenizer; a test holds the two against each other's recorded answers. Every piece of
text is encoded as text, so nothing that a client wrote becomes a control token.
"""

from __future__ import annotations

from typing import Any

from renderers import gpt_oss
from renderers.base import resolve_thinking_retention
from renderers.configs import GptOssRendererConfig
from renderers.gpt_oss import DeveloperContent, ReasoningEffort, SystemContent

from gyre.proxy.codecs.harmony_types import tools_section
from gyre.proxy.codecs.tokenizer import FastTokenizer

_FUNCTIONS = "functions"
_TO_FUNCTIONS = "Calls to these tools must go to the commentary channel: 'functions'."


class HarmonyText:
    """What `renderers` needs of a HarmonyEncoding, over any tokenizer with its control tokens."""

    def __init__(self, tokenizer: FastTokenizer) -> None:
        self._tokenizer = tokenizer

    def render_conversation(self, conversation: Any) -> list[int]:
        """Token ids of all messages of a Conversation of openai_harmony."""
        has_functions = any(
            isinstance(content, DeveloperContent)
            and _FUNCTIONS in (content.tools or {})
            and bool((content.tools or {})[_FUNCTIONS].tools)
            for message in conversation.messages
            for content in message.content
        )
        return [
            token
            for message in conversation.messages
            for token in self.render(message, has_functions=has_functions)
        ]

    def render(self, message: Any, *, has_functions: bool = False) -> list[int]:
        """Token ids of one message. has_functions: the conversation has tools of the client's."""
        role = message.author.role.value
        ids = self._control("<|start|>")
        if role == "tool":
            ids += self._text(message.author.name or "")
        else:
            ids += self._text(role)
            ids += self._text(f":{message.author.name}" if message.author.name else "")
        if message.recipient is not None and message.recipient != "all":
            ids += self._text(f" to={message.recipient}")
        if message.channel is not None:
            ids += self._control("<|channel|>") + self._text(message.channel)
        ids += self._control("<|message|>")
        for content in message.content:
            ids += self._text(_told(content, has_functions))
        calls = role == "assistant" and message.recipient is not None
        return ids + self._control("<|call|>" if calls else "<|end|>")

    def _text(self, text: str) -> list[int]:
        return self._tokenizer.encode(self._tokenizer.literal(text))

    def _control(self, name: str) -> list[int]:
        return self._tokenizer.encode(name)


class GptOssRenderer(gpt_oss.GptOssRenderer):  # type: ignore[misc]  # it has no types
    """The same in all but what it encodes with."""

    def __init__(self, tokenizer: FastTokenizer, config: GptOssRendererConfig) -> None:
        # Not the parent's: it would fetch its vocabulary.
        if config.conversation_start_date is None:
            raise ValueError("the day that is told to the model is not set")
        self._tokenizer: Any = tokenizer
        self.config = config
        self.effective_thinking_retention = resolve_thinking_retention(config, "all")
        self._enc: Any = HarmonyText(tokenizer)
        self._reasoning_effort_enum = ReasoningEffort(config.reasoning_effort.title())
        self._conversation_start_date_resolved = config.conversation_start_date
        names = ("start", "end", "return", "call", "channel", "message", "constrain")
        for name in names:
            setattr(self, f"_{name}", self._token_id(f"<|{name}|>"))


def _told(content: Any, has_functions: bool) -> str:
    if isinstance(content, SystemContent):
        return _system(content, has_functions)
    if isinstance(content, DeveloperContent):
        return _developer(content)
    text: str = content.text
    return text


def _system(content: SystemContent, has_functions: bool) -> str:
    """What the model is, when it is, and how it is to answer."""
    top = [
        content.model_identity,
        content.knowledge_cutoff and f"Knowledge cutoff: {content.knowledge_cutoff}",
        content.conversation_start_date and f"Current date: {content.conversation_start_date}",
    ]
    sections = ["\n".join(line for line in top if line)]
    if content.reasoning_effort is not None:
        sections.append(f"Reasoning: {content.reasoning_effort.value.lower()}")
    if content.channel_config is not None:
        channels = f"# Valid channels: {', '.join(content.channel_config.valid_channels)}."
        if content.channel_config.channel_required:
            channels += " Channel must be included for every message."
        sections.append(f"{channels}\n{_TO_FUNCTIONS}" if has_functions else channels)
    return "\n\n".join(sections)


def _developer(content: DeveloperContent) -> str:
    """The client's system text and its tools."""
    sections = [] if content.instructions is None else ["# Instructions", content.instructions]
    for name, space in sorted((content.tools or {}).items()):
        sections.append(tools_section(name, space.description, space.tools))
    return "\n\n".join(sections)
