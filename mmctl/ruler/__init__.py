"""RULER (arXiv 2404.06654; NVIDIA/RULER @ c3f5e3b): 13 tasks at any length, with any tokenizer, seeded, without a
download.

Built from the published construction, not from its code. Where it differs: every sample has its own generator, so a
sample does not depend on how many are drawn or on how its haystack's size was found; haystack text comes from this
machine (`mmctl.ruler.haystack`), questions from a file of yours or made-up documents (`mmctl.ruler.questions`);
sentences are split at their marks, without NLTK.
"""

from __future__ import annotations

from mmctl.ruler.registry import RULER, Sample, Sources, samples, wanted
from mmctl.ruler.scoring import score

__all__ = ["RULER", "Sample", "Sources", "samples", "score", "wanted"]
