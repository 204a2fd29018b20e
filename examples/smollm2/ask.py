"""The example's agent program: asks for a sentence, and once more for one with what it lacks.

Knows nothing of Gyre: a chat against an OpenAI-style API, standard library only. Its argument is
the words, its last answer goes into `answer.txt`.
"""

import json
import os
import re
import sys
import urllib.request

# What the model was taught to be; its own template says it where nobody says anything else.
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def complete(messages: list[dict[str, str]]) -> str:
    request = urllib.request.Request(  # noqa: S310 - the job gives the address
        os.environ["BASE_URL"] + "/chat/completions",
        json.dumps({"model": "policy", "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:  # noqa: S310
        answer = json.load(response)
    return answer["choices"][0]["message"].get("content") or ""


def main() -> None:
    words = sys.argv[1].split()
    *first, last = words
    said = f"Write one short sentence with the words {', '.join(first)} and {last}."
    messages = [{"role": "system", "content": SYSTEM}]
    for _ in range(2):
        messages.append({"role": "user", "content": said})
        answer = complete(messages)
        messages.append({"role": "assistant", "content": answer})
        lacking = [it for it in words if not re.search(rf"\b{it}\b", answer, re.IGNORECASE)]
        if not lacking:
            break
        said = f"Write it again, with the word {lacking[0]}."
    with open("answer.txt", "w", encoding="utf-8") as stream:
        stream.write(answer + "\n")


if __name__ == "__main__":
    main()
