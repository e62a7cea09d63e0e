"""The Qwen3.6 chat template as rules: the text that a model sees for OpenAI-style messages.

Content is a string or null; tool calls carry their arguments as an object or as JSON text. The C
program renders the same rules.
"""

import json

TOOLS_HEAD = "# Tools\n\nYou have access to the following functions:\n\n<tools>"
TOOLS_TAIL = """
</tools>

If you choose to call a function ONLY reply in the following format with NO suffix:

<tool_call>
<function=example_function_name>
<parameter=example_parameter_1>
value_1
</parameter>
<parameter=example_parameter_2>
This is the value for the second parameter
that can span
multiple lines
</parameter>
</function>
</tool_call>

<IMPORTANT>
Reminder:
- Function calls MUST follow the specified format: an inner <function=...></function> block \
must be nested within <tool_call></tool_call> XML tags
- Required parameters MUST be specified
- You may provide optional reasoning for your function call in natural language BEFORE the \
function call, but NOT after
- If there is no function call available, answer the question like normal with your current \
knowledge and do not tell the user about function calls
</IMPORTANT>"""


def to_json(value):
    return json.dumps(value, ensure_ascii=False)


def text_of(message):
    return (message.get("content") or "").strip()


def tool_call_text(call):
    """One <tool_call> block; strings go in as they are, everything else as JSON."""
    function = call.get("function", call)
    arguments = function["arguments"]
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    lines = [f"<tool_call>\n<function={function['name']}>\n"]
    for key, value in arguments.items():
        text = value if isinstance(value, str) else to_json(value)
        lines.append(f"<parameter={key}>\n{text}\n</parameter>\n")
    return "".join(lines) + "</function>\n</tool_call>"


def assistant_body(message):
    """Answer text and tool calls, without the reasoning."""
    body = text_of(message)
    for k, call in enumerate(message.get("tool_calls") or ()):
        separator = "\n" if k else ("\n\n" if body else "")
        body += separator + tool_call_text(call)
    return body


def head_text(messages, tools):
    system = text_of(messages[0]) if messages[0]["role"] == "system" else None
    if tools:
        listed = "".join("\n" + to_json(tool) for tool in tools)
        extra = "\n\n" + system if system else ""
        return f"<|im_start|>system\n{TOOLS_HEAD}{listed}{TOOLS_TAIL}{extra}<|im_end|>\n"
    return "" if system is None else f"<|im_start|>system\n{system}<|im_end|>\n"


def last_query(messages):
    """Index of the last user message that is a question and not a tool's answer."""
    for i in range(len(messages) - 1, -1, -1):
        text = text_of(messages[i])
        wrapped = text.startswith("<tool_response>") and text.endswith("</tool_response>")
        if messages[i]["role"] == "user" and not wrapped:
            return i
    raise ValueError("no user query")


def render(messages, tools=None, thinking=True):
    """The prompt for the next assistant turn."""
    out = [head_text(messages, tools)]
    query = last_query(messages)
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            out.append(f"<|im_start|>user\n{text_of(message)}<|im_end|>\n")
        elif role == "assistant":
            thought = (
                f"<think>\n{(message.get('reasoning_content') or '').strip()}\n</think>\n\n"
                if i > query
                else ""
            )
            out.append(f"<|im_start|>assistant\n{thought}{assistant_body(message)}<|im_end|>\n")
        elif role == "tool":
            if i and messages[i - 1]["role"] != "tool":
                out.append("<|im_start|>user")
            out.append(f"\n<tool_response>\n{text_of(message)}\n</tool_response>")
            if i + 1 == len(messages) or messages[i + 1]["role"] != "tool":
                out.append("<|im_end|>\n")
    out.append("<|im_start|>assistant\n" + ("<think>\n" if thinking else "<think>\n\n</think>\n\n"))
    return "".join(out)


def answer_text(message, thinking):
    """What the model should write after that prompt, its end token included."""
    thought = f"{message.get('reasoning_content', '').strip()}\n</think>\n\n" if thinking else ""
    return f"{thought}{assistant_body(message)}<|im_end|>"
