"""A random Llama of one layer with a byte-level tokenizer of 512 tokens, saved as vLLM and transformers load one."""

from __future__ import annotations

from pathlib import Path

N_VOCAB, BOS, END = 512, 1, 2
TEXT = "The answer is yes or no. Is it READ, READ_FILE or SEND_EMAIL? Think, then answer: Paris, Rome or Oslo.\n" * 3


def save_tiny_llama(folder: Path) -> None:
    import tokenizers
    import torch
    import transformers

    core = tokenizers.Tokenizer(tokenizers.models.BPE())
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<think>", "</think>"]
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=N_VOCAB - 8, special_tokens=special, initial_alphabet=letters, show_progress=False
    )
    core.train_from_iterator([TEXT], trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=N_VOCAB,  # more than the tokenizer has, as many models do
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        initializer_range=0.5,  # so that answers differ
        bos_token_id=BOS,
        eos_token_id=END,
        pad_token_id=0,
    )
    transformers.LlamaForCausalLM(config).float().save_pretrained(folder)
