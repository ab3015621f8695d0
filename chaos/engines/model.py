"""Writes a tiny model for the engines to serve: model.py DIRECTORY qwen3|gpt2.

It is a Qwen3 without weights for vLLM, which draws them at random (--load-format dummy) with a seed that is always the same, so two
engines answer alike. Without a GPU, SGLang 0.5.23 computes only models without rotary embeddings, and its random weights all but
vanish: for it, gpt2 writes a GPT-2 with weights. The tokenizer is trained on the help texts that come with Python, so the same Python makes the same one.
"""

import json
import pathlib
import sys
from pydoc_data.topics import topics

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 8000

# ChatML with tools, as Qwen writes it: the prompts of two turns of a conversation share all but the end of the first.
TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools

You may call these functions:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call> to call one.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role != 'system' or not loop.first %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def tokenizer():
    t = tokenizers.Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        (topics[name] for name in sorted(topics)),
        trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                            show_progress=False))
    if t.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the tokenizer has {t.get_vocab_size()} entries, and the model {VOCABULARY}: lower VOCABULARY in model.py")
    return t


def write(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def main():
    where = pathlib.Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    t = tokenizer()
    t.save(str(where / "tokenizer.json"))
    end = t.token_to_id("<|im_end|>")
    write(where / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    })
    write(where / "generation_config.json", {"eos_token_id": [end], "pad_token_id": 0})
    {"qwen3": qwen3, "gpt2": gpt2}[sys.argv[2]](where, end)


def qwen3(where, end):
    write(where / "config.json", {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 32768,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "use_cache": True,
        "dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": end,
    })


def gpt2(where, end):
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1)
    # With the usual range, a token would be followed by itself.
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=2, n_positions=8192, initializer_range=0.5, bos_token_id=None, eos_token_id=end)
    transformers.GPT2LMHeadModel(config).to(torch.bfloat16).save_pretrained(where)


if __name__ == "__main__":
    main()
