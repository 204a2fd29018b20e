"""The model families that are served, each by a renderer of `renderers` and its settings.

All keep the thinking of earlier turns, since history stays as it was sampled. Where a template has
a switch for it, it is set; where it has none (qwen3, qwen3.5, glm-4.5, minimax-m2, kimi-k2.5), what
is sampled is kept all the same.

| family | what is its own |
|---|---|
| glm | no token closes a turn: it ends with the token that opens what comes next |
| kimi | a tool's result is told by the id that the model gave the call |
| inkling | a tool's result is told by the tool's name |
| llama-3 | one call a turn; the tools stand in the system text; the date is the template's own |
| hy3 | system text is read at the beginning only, later it is the user's |
| gpt-oss | one call a turn; told over the model's own vocabulary (`harmony`), on a fixed day |
| gemma4 | a turn goes on behind the results that it called for |
| deepseek-v3, -r1 | as gemma4, without a call that waits; the template has no place for tools |
| deepseek-v4 | all that stands between two turns is one text |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from gyre.proxy.codecs.tokenizer import FastTokenizer, ModelFilesError
from gyre.proxy.codecs.tools_text import deepseek_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """renderer: module, of `renderers` unless it is a full name, and class.
    close: the token that ends a turn; None where there is none.
    late_system: whether the template has a place for system text after the beginning.
    tool_ids, tool_names: what of a call its result is told by, beside its place.
    one_call: a turn has at most one.
    verbatim: arguments are told as text, not as what they mean.
    resumes: what opens a turn behind a tool's result is another thing, or nothing.
    awaits: a turn ends with the token that opens the result it waits for, and goes on behind it.
    one_text: what stands between two turns is one text, and is told and known as one.
    marked: texts are marked as such for the renderer; one that encodes them apart has no need.
    tools_text: what tells the tools, in the system text, where the template does not."""

    renderer: str
    close: str | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    late_system: bool = True
    tool_ids: bool = False
    tool_names: bool = False
    one_call: bool = False
    verbatim: bool = False
    resumes: bool = False
    awaits: bool = False
    one_text: bool = False
    marked: bool = True
    tools_text: Callable[[Sequence[Mapping[str, Any]]], str] | None = None

    def build(self, tokenizer: FastTokenizer) -> Any:
        """The renderer. Raises ModelFilesError for a tokenizer that is not the family's."""
        module, name = self.renderer.split(":")
        path = module if "." in module else f"renderers.{module}"
        renderer: Any = getattr(import_module(path), name)
        config: Any = getattr(
            import_module("renderers.configs"), name.removesuffix("Renderer") + "RendererConfig"
        )
        try:
            return renderer(tokenizer, config(thinking_retention="all", **self.settings))
        except (AssertionError, ValueError) as error:
            raise ModelFilesError(f"{tokenizer.name_or_path}: not {name}'s: {error}") from error


_CHATML = "<|im_end|>"
_DEEPSEEK = "<｜end▁of▁sentence｜>"
_THINK = {"enable_thinking": True}
_KEEP = {"enable_thinking": True, "preserve_thinking": True}
_WHOLE = {"enable_thinking": True, "truncate_history_thinking": False}

FAMILIES: Mapping[str, Family] = {
    "qwen3": Family(renderer="qwen3:Qwen3Renderer", close=_CHATML, verbatim=True),
    "qwen3.5": Family(renderer="qwen35:Qwen35Renderer", close=_CHATML, settings=_THINK),
    "qwen3.6": Family(renderer="qwen36:Qwen36Renderer", close=_CHATML, settings=_KEEP),
    "qwen3.8": Family(renderer="qwen38:Qwen38Renderer", close=_CHATML, settings=_KEEP),
    "qwen3-vl": Family(renderer="qwen3_vl:Qwen3VLRenderer", close=_CHATML, verbatim=True),
    "prime-qwen3": Family(renderer="prime_qwen3:PrimeQwen3Renderer", close=_CHATML),
    "glm-4.5": Family(renderer="glm45:GLM45Renderer", close=None, settings=_THINK),
    "glm-5": Family(
        renderer="glm5:GLM5Renderer", close=None, settings={**_THINK, "clear_thinking": False}
    ),
    "glm-5.1": Family(
        renderer="glm5:GLM51Renderer", close=None, settings={**_THINK, "clear_thinking": False}
    ),
    "glm-5.3": Family(
        renderer="glm5:GLM53Renderer", close=None, settings={"clear_thinking": False}
    ),
    "kimi-k2": Family(
        renderer="kimi_k2:KimiK2Renderer", close=_CHATML, tool_ids=True, verbatim=True
    ),
    "kimi-k2.5": Family(
        renderer="kimi_k25:KimiK25Renderer", close=_CHATML, tool_ids=True, verbatim=True
    ),
    "minimax-m2": Family(renderer="minimax_m2:MiniMaxM2Renderer", close="[e~["),
    "nemotron-3": Family(renderer="nemotron3:Nemotron3Renderer", close=_CHATML, settings=_WHOLE),
    "nemotron-3-ultra": Family(
        renderer="nemotron3:Nemotron3UltraRenderer", close=_CHATML, settings=_WHOLE
    ),
    "nemotron-3.5": Family(renderer="nemotron3:Nemotron35Renderer", close=_CHATML, settings=_WHOLE),
    "llama-3": Family(
        renderer="llama_3:Llama3Renderer",
        close="<|eot_id|>",
        settings={"tools_in_user_message": False},
        one_call=True,
    ),
    "hy3": Family(
        renderer="hy3:Hy3Renderer",
        close="<｜hy_eos:opensource｜>",
        settings={"reasoning_effort": "high", "preserved_thinking": True},
        late_system=False,
    ),
    "laguna-xs.2": Family(
        renderer="laguna_xs2:LagunaXS2Renderer", close="</assistant>", settings=_THINK
    ),
    "laguna-m.1": Family(
        renderer="laguna_xs2:LagunaM1Renderer", close="</assistant>", settings=_THINK
    ),
    "laguna-xs-2.1": Family(
        renderer="laguna_xs2:LagunaXS21Renderer", close="</assistant>", settings=_THINK
    ),
    "laguna-s-2.1": Family(
        renderer="laguna_s21:LagunaS21Renderer", close="</assistant>", settings=_KEEP
    ),
    "inkling": Family(
        renderer="inkling:InklingRenderer",
        close="<|content_model_end_sampling|>",
        tool_names=True,
    ),
    "gpt-oss": Family(
        renderer="gyre.proxy.codecs.harmony:GptOssRenderer",
        close="<|end|>",
        settings={"auto_drop_analysis": False, "conversation_start_date": "2025-08-05"},
        tool_names=True,
        one_call=True,
        verbatim=True,
        marked=False,
    ),
    "gemma4": Family(
        renderer="gemma4:Gemma4Renderer",
        close="<turn|>",
        settings=_KEEP,
        tool_names=True,
        resumes=True,
        awaits=True,
    ),
    "deepseek-v3": Family(
        renderer="deepseek_v3:DeepSeekV3Renderer",
        close=_DEEPSEEK,
        verbatim=True,
        resumes=True,
        tools_text=deepseek_tools,
    ),
    "deepseek-r1": Family(
        renderer="deepseek_r1:DeepSeekR1Renderer",
        close=_DEEPSEEK,
        verbatim=True,
        resumes=True,
        tools_text=deepseek_tools,
    ),
    "deepseek-v4": Family(
        renderer="deepseek_v4:DeepSeekV4Renderer",
        close=_DEEPSEEK,
        settings={"enable_thinking": True, "drop_thinking": False},
        late_system=False,
        one_text=True,
    ),
}
