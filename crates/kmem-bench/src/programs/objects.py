# Dicts, lists, strings, JSON and regular expressions, as ordinary scripts use them.
import json
import re

people = {}
for number in range(25000):
    people["person %d" % number] = {
        "id": number,
        "tags": [str(number + step) for step in range(6)],
        "text": "x%d " % number * (number % 23),
    }
text = json.dumps(people)
again = json.loads(text)
words = re.findall(r"x\d+", text)
counts = {}
for word in words:
    counts[word] = counts.get(word, 0) + 1
buffers = [bytearray(600 + number % 5000) for number in range(10000)]
for number in range(0, len(buffers), 2):
    buffers[number] = bytearray(800 + number % 3000)
lines = text.split('"')
joined = "".join(sorted(lines, key=len)[-5000:])
print(len(text), len(again), len(words), len(counts), len(joined), sum(map(len, buffers)))
