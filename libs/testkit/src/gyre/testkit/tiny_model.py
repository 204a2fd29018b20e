"""A random Qwen3 or Llama of a few thousand parameters, as a Hugging Face directory.

Small enough that an engine or a trainer loads it in milliseconds, real enough (a released model's
architecture, a byte-level BPE tokenizer with Qwen3's special tokens) that the programs under test
read it exactly as they read a released checkpoint. Needs `transformers`, imported lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

QWEN3_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

_CORPUS = (
    "the quick brown fox jumps over the lazy dog. hello world, user assistant system",
    "You are a helpful assistant. Write the sum of 3 and 4 into answer.txt",
    '{"name": "write_file", "arguments": {"path": "answer.txt", "content": "7"}}',
)


def make_tiny_model(
    directory: Path | str,
    seed: int = 0,
    *,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    intermediate_size: int = 128,
    vocab_size: int = 512,
    tie_word_embeddings: bool = True,
    max_position_embeddings: int = 2048,
    num_experts: int | None = None,
    llama: bool = False,
) -> Path:
    """Write config.json, model.safetensors (fp32) and the tokenizer files; return `directory`.

    num_experts: of a Qwen3-MoE, two a token; None for a dense model. llama: a Llama, dense.

    The same seed gives the same bytes of weights. The weights are spread wide enough that
    the next-token distribution is far from uniform, so that greedy decoding is not a tie.
    `vocab_size` must be at least the tokenizer's (about 400 entries).
    """
    path = Path(directory)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tiny_tokenizer()
    if len(tokenizer) > vocab_size:
        raise ValueError(f"vocab_size {vocab_size} is below the tokenizer's {len(tokenizer)}")
    tokenizer.save_pretrained(str(path))
    make = _llama if llama else _dense if num_experts is None else _experts(num_experts)
    model = _random(
        seed,
        make,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie_word_embeddings,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        bos_token_id=None,
    )
    model.save_pretrained(str(path))
    return path


def make_two_tiny_models(root: Path) -> tuple[Path, Path]:
    """Below `root`: an engine can be given the second's weights after the first's."""
    return make_tiny_model(root / "m0", seed=0), make_tiny_model(root / "m1", seed=1)


def train_bpe(texts: Sequence[str], vocab_size: int) -> Any:
    """A byte-level BPE `Tokenizer` with Qwen3's control tokens; deterministic for the texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(QWEN3_SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


def make_tiny_tokenizer(vocab_size: int = 400, corpus: Sequence[str] = _CORPUS) -> Any:
    """A byte-level BPE `PreTrainedTokenizerFast`; deterministic for a corpus."""
    from transformers import PreTrainedTokenizerFast

    bpe = train_bpe(list(corpus) * 50, vocab_size)
    make_fast: Any = PreTrainedTokenizerFast  # untyped in transformers
    return make_fast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(QWEN3_SPECIAL_TOKENS[1:]),
    )


def _random(seed: int, make: Callable[..., Any], **config: Any) -> Any:
    """What `make` makes of the config, in fp32 with matrices of unit gain."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make(**config).float()
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
            else:
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def _dense(**config: Any) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(**config))


def _llama(**config: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**config))


def _experts(count: int) -> Callable[..., Any]:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    def make(**config: Any) -> Any:
        return Qwen3MoeForCausalLM(
            Qwen3MoeConfig(
                **config,
                num_experts=count,
                num_experts_per_tok=2,
                moe_intermediate_size=config["intermediate_size"] // 2,
                norm_topk_prob=True,
            )
        )

    return make
