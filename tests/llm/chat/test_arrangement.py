"""Conversations of coding agents in templates that are strict about the order of roles."""

import pytest

from mindspore_serving.llm.chat.template import ChatTemplate
from tests.llm.chat_templates import MISTRAL, QWEN

FIRST_ONLY = """
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}
{%- endif %}
{{- '<' + m.role + '>' + m.content }}
{%- endfor %}
"""
SILENT = """
{%- if messages[0].role == 'system' %}{{ '<system>' + messages[0].content }}{% endif %}
{%- for m in messages if m.role != 'system' %}{{ '<' + m.role + '>' + m.content }}{% endfor %}
"""
AGENT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Today is Monday."},
    {"role": "system", "content": "Skills: none."},
    {"role": "user", "content": "Hi"},
]


@pytest.mark.parametrize("source", [FIRST_ONLY, SILENT], ids=["refuses", "leaves out"])
def test_a_later_system_message_becomes_the_users(source):
    text = ChatTemplate(source).render(AGENT)
    assert text == "<system>Be brief.<user>Today is Monday.<user>Skills: none.<user>Hi"


def test_user_messages_in_a_row_are_joined_where_roles_alternate():
    text = ChatTemplate(MISTRAL, {"bos_token": "", "eos_token": ""}).render(AGENT)
    assert "[INST] Be brief.\n\nToday is Monday.\n\nSkills: none.\n\nHi[/INST]" in text


def test_messages_stay_as_they_are_where_the_template_renders_them():
    text = ChatTemplate(QWEN).render(AGENT)
    roles = [part.split("\n")[0] for part in text.split("<|im_start|>")[1:]]
    assert roles[:4] == ["system", "user", "system", "user"]


def test_images_stay_parts_of_joined_messages():
    shows = MISTRAL.replace('+ message["content"] +', '+ message["content"] | string +')
    parts = [{"role": "user", "content": [{"type": "image"}]}, {"role": "user", "content": "Hi"}]
    text = ChatTemplate(shows, {"bos_token": "", "eos_token": ""}).render(parts)
    assert "[{'type': 'image'}, {'type': 'text', 'text': 'Hi'}]" in text
