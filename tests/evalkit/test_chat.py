"""Chat templates of the field, and those that can't hold a conversation."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from evalkit.chat import ChatRenderer, Message
from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
    "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
THINKING = (
    "{% for m in messages %}{% set content = m.content %}{% if m.role == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}<{{ m.role }}>{{ content }}</s>{% endfor %}"
)
WITHOUT_SYSTEM = "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}"


def renderer(template: str) -> ChatRenderer:
    """Every character is a token."""
    vocabulary = {chr(code): code for code in range(1, 128)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return ChatRenderer(TextTokenizer(tokenizer, prefix_token=None, end_token=None, chat_template=template))


def text(ids: list[int]) -> str:
    return "".join(map(chr, ids))


@pytest.mark.parametrize(
    ("template", "opening", "following"),
    [
        (
            CHATML,
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
            "<|im_end|>\n<|im_start|>user\nbye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (LLAMA_2, "[INST] <<SYS>>\nbe kind\n<</SYS>>\n\nhi [/INST]", " [INST] bye [/INST]"),
        (THINKING, "<system>be kind</s><user>hi</s>", "</s><user>bye</s>"),
    ],
)
def test_templates_of_the_field(template: str, opening: str, following: str) -> None:
    chat = renderer(template)
    assert text(chat.opening("be kind", "hi")) == opening
    assert text(chat.next_turn([1], "bye")) == following
    assert chat.system_problem() == ""


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (GEMMA, "System role not supported"),
        (WITHOUT_SYSTEM, "leaves out or repeats what a system message says"),
    ],
)
def test_a_template_without_system_texts_says_so(template: str, reason: str) -> None:
    chat = renderer(template)
    assert reason in chat.system_problem()
    with pytest.raises(InputError, match=reason):
        chat.opening("be kind", "hi")
    assert text(chat.opening(None, "hi"))
    with pytest.raises(InputError, match=reason):
        chat.conversation([Message("system", "be kind"), Message("user", "hi"), Message("assistant", "yes")])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for", "broken template"),
        (
            "{% for m in messages %}<{{ m.role }}>{% endfor %}",
            "leaves out or repeats what a user message says",
        ),
        (
            "{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
            "leaves out or repeats what a user message",
        ),
        (
            "{% for m in messages[-1:] %}{{ m.content }}{% endfor %}",
            "leaves out or repeats what a user message",
        ),
        (
            "{% for m in messages %}{{ m.content[:2] }}{% endfor %}",
            "leaves out or repeats what a user message",
        ),
        ("{% for i in range(10 ** 9) %}x{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages + 1 }}", "can only concatenate list"),
    ],
)
def test_a_template_that_cannot_hold_a_conversation_is_refused(template: str, message: str) -> None:
    with pytest.raises(InputError, match=f"tokenizer.chat_template: .*{message}"):
        renderer(template)
