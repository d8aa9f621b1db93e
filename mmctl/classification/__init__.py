"""In-context classification as in LongICLBench (TIGER-AI-Lab/LongICLBench @ 9c5da3d) and Memory Mosaics v2, section
5.3.

Examples of every class stand in the prompt, the class of one more is to be generated. Data from files of yours or by
Hugging Face name; semantic or anonymous labels, two delimiters, two orders, any number of shots.
"""

from __future__ import annotations

from mmctl.classification.datasets import DATASETS, Examples, read
from mmctl.classification.measure import measure
from mmctl.classification.prompts import Prompt, prompt

__all__ = ["DATASETS", "Examples", "Prompt", "measure", "prompt", "read"]
