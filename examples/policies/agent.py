"""The comparison's agent program: as many model calls, one after another, as its task says.

Knows nothing of Gyre: a chat loop against an OpenAI-style API, standard library only and few of its
modules, since hundreds of these start on one machine. Writes what was said to `said.txt`.
"""

import http.client
import json
import os
import sys
from urllib.parse import urlsplit


def complete(
    connection: http.client.HTTPConnection, path: str, messages: list[dict[str, str]]
) -> str:
    headers = {
        "Authorization": "Bearer " + os.environ["API_KEY"],
        "Content-Type": "application/json",
    }
    body = json.dumps({"model": "policy", "messages": messages})
    connection.request("POST", path, body, headers)
    with connection.getresponse() as response:
        answer = json.load(response)
    if response.status != 200:
        raise SystemExit(f"HTTP {response.status}: {answer}")
    return answer["choices"][0]["message"].get("content") or ""


def main() -> None:
    num_turns = int(sys.argv[1].split()[-1])
    base = urlsplit(os.environ["BASE_URL"])
    connection = http.client.HTTPConnection(base.hostname or "127.0.0.1", base.port, timeout=600)
    messages = [{"role": "user", "content": sys.argv[1]}]
    for _ in range(num_turns):
        said = complete(connection, base.path + "/chat/completions", messages)
        messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": "go on"})
    with open("said.txt", "w", encoding="utf-8") as stream:
        json.dump(messages, stream)


main()
