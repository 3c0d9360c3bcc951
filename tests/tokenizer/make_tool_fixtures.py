"""Writes tools.json of tests/tokenizer/fixtures.tar.xz: chats with tools, by the templates of chat.json and jinja2.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install jinja2 gguf
    /tmp/venv/bin/python tests/tokenizer/make_tool_fixtures.py

"tools": JSON; "conversations": lists of [role, text, tool calls as JSON, id of the call, name]; "renderings": by template, a text for
each conversation, or null where jinja2 refuses."""

import json

from make_chat_fixtures import environment
from packed import pack, unpack

TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "Weather \u201ctoday\u201d <|im_end|>", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}}]
CALL = [{"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": {"city": "Z\u00fcrich", "days": 2}}}]
CONVERSATIONS = [
    [["user", "Hi"]],
    [["system", "Be brief."], ["user", "Rain?"]],
    [["user", "Rain?"], ["assistant", "", CALL], ["tool", "{\"rain\": true}", None, "call12345", "weather"]],
    [["user", "Rain?"], ["assistant", "Let me see.", CALL], ["tool", "yes", None, "call12345", "weather"], ["assistant", "It rains."],
     ["user", "And now?"]],
]


def message(role, text, calls=None, call=None, name=None):
    found = {"role": role, "content": text}
    if calls:
        found["tool_calls"] = calls
    if call:
        found |= {"tool_call_id": call, "name": name}
    return found


def rendered(env, template, talk):
    try:
        return env.from_string(template).render(messages=[message(*one) for one in talk], add_generation_prompt=True, bos_token="<s>",
                                                eos_token="</s>", tools=TOOLS, documents=None)
    except Exception:  # whatever Python makes of it
        return None


def main():
    chats = json.loads(unpack()["chat.json"])
    env = environment()
    templates = {name: text for name, text in chats["templates"].items() if "tools" in text}
    # Arguments as OpenAI has them: a text.
    talks = [[[role, text, *(json.dumps([{**one, "function": {**one["function"], "arguments": json.dumps(one["function"]["arguments"],
               ensure_ascii=False)}} for one in part], ensure_ascii=False) if isinstance(part, list) else part or "" for part in more)]
              for role, text, *more in talk] for talk in CONVERSATIONS]
    document = {"tools": json.dumps(TOOLS, ensure_ascii=False), "conversations": talks,
                "renderings": {name: [rendered(env, text, talk) for talk in CONVERSATIONS] for name, text in templates.items()}}
    for name, texts in document["renderings"].items():
        print(name, [text is not None for text in texts])
    pack("tools.json", json.dumps(document, ensure_ascii=True, indent=0) + "\n")


if __name__ == "__main__":
    main()
