"""The published prompts (scripts/data/synthetic/constants.py), base template: prompt, then answer prefix."""

from __future__ import annotations

from mmctl.data.docs_qa import GIVEN, INSTRUCTION

NIAH = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about the {kind} "
    "afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text are"
)
NIAH_SINGLE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. I will quiz you about the {kind} "
    "afterwards.\n{context}\nWhat is the special magic {kind} for {query} mentioned in the provided text?"
    " The special magic {kind} for {query} mentioned in the provided text is"
)
"""One value asked for: the published template with its plurals replaced."""
NEEDLE = "One of the special magic {kinds} for {key} is: {value}."
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."

VARIABLES = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find all "
    "variables that are assigned the value {query} in the text above."
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the value "
    "{query}, they are: "
)
COMMON_WORDS = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that appear most "
    "often.\n{context}\nQuestion: What are the 10 most common words in the above list?"
    " Answer: The top 10 words that appear most often in the list are:"
)
FREQUENT_WORDS = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared coded "
    "words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the three most "
    "frequently appeared words in the above coded text?"
    " Answer: According to the coded text above, the three most frequently appeared words are:"
)
QUESTION = f"{INSTRUCTION}{GIVEN}{{context}}\n\n{INSTRUCTION}\n\nQuestion: {{query}} Answer:"
DOCUMENT = "Document {number}:\n{text}"
