"""A trained run as a model of lm-evaluation-harness: log-likelihoods, rolling log-likelihoods, generation.

Scores do not depend on how requests are batched: every sequence is computed as if alone (mmctl.generation). Nothing is
cut off on the left: the models here read a context of any length.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lm_eval.api.model import TemplateLM

from mmctl.errors import UsageError
from mmctl.generation import Sampling, generate, log_likelihoods

MAX_TOKENS = 256
"""Tokens generated when a task names no number, as in the harness's own models."""
PREFIX = "\n"
"""Stands before a text that has no context: tokenizers of bytes have no token of their own for a beginning."""


class MmctlLM(TemplateLM):
    """`--model mmctl --model_args run=RUN[,runs=FOLDER]`, or made from a loaded model and its tokenizer."""

    def __init__(
        self,
        run: str | None = None,
        runs: str | None = None,
        batch_size: int | str | None = 16,
        device: str | None = "cpu",
        model: Any = None,
        tokenizer: Any = None,
        **_: Any,
    ) -> None:
        """UsageError when there is no such run. Other arguments of the harness (max_batch_size, ...) mean nothing
        here."""
        super().__init__()
        if model is None:
            if run is None:
                raise UsageError("--model_args: expected run=RUN, as `mmctl runs list` prints it")
            model, tokenizer = _load(str(run), runs, device or "cpu")
        self.model, self.tokenizer = model, tokenizer
        self.batch = int(str(batch_size)) if str(batch_size).isdigit() else 16
        self._device = model.embedding.weight.device

    @property
    def eot_token_id(self) -> int:
        """Used as a prefix only: nothing here ends a text by a token."""
        return int(self.tokenizer.encode(PREFIX)[-1])

    @property
    def device(self) -> Any:
        return self._device

    @property
    def tokenizer_name(self) -> str:
        """Part of the harness's cache keys."""
        return str(self.tokenizer.sha256 or self.tokenizer.name)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return list(self.tokenizer.encode(string))

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        pairs = [(context, continuation) for _, context, continuation in requests]
        found = log_likelihoods(self.model, pairs)
        return [(score.log_likelihood, score.greedy) for score in found]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """log p of whole texts, each read in one piece behind `PREFIX`."""
        texts = [self.tok_encode(request.args[0]) for request in requests]
        pairs = [([self.eot_token_id], text) for text in texts]
        wanted = [pair for pair in pairs if pair[1]]
        scores = iter(log_likelihoods(self.model, wanted) if wanted else [])
        return [next(scores).log_likelihood if text else 0.0 for text in texts]

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Texts up to, and without, the first stop string; requests with the same settings are decoded together."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(number)
        texts: list[str] = [""] * len(requests)
        for numbers in groups.values():
            settings = dict(requests[numbers[0]].args[1])
            stop = settings.get("until") or []
            prompts = [self.tok_encode(requests[n].args[0]) or [self.eot_token_id] for n in numbers]
            made = generate(
                self.model,
                self.tokenizer,
                prompts,
                max_tokens=int(settings.get("max_gen_toks") or settings.get("max_tokens") or MAX_TOKENS),
                sampling=_sampling(settings),
                stop=[s for s in ([stop] if isinstance(stop, str) else stop) if s],
                batch=self.batch,
                allowed=self.tokenizer.size,
            )
            for number, each in zip(numbers, made, strict=True):
                texts[number] = each.text
        return texts


def _sampling(settings: dict[str, Any]) -> Sampling:
    """Greedy unless the task says do_sample with a temperature above 0."""
    temperature = float(settings.get("temperature", 0.0) or 0.0)
    if not settings.get("do_sample", temperature > 0) or temperature == 0:
        return Sampling(temperature=0.0)
    top_k, top_p = settings.get("top_k"), settings.get("top_p")
    return Sampling(temperature, int(top_k) if top_k else None, float(top_p) if top_p else None)


def _load(run: str, runs: str | None, device: str) -> tuple[Any, Any]:
    import torch

    from mmctl.data.tokenizers import run_tokenizer
    from mmctl.runs import RunFolder, runs_root
    from mmctl.training.run import load_model, pick_device

    folder = RunFolder.find(runs_root(None if runs is None else Path(runs)), run)
    config = folder.config()
    torch.set_num_threads(config.training.threads)
    model, _ = load_model(folder, pick_device(device))
    return model, run_tokenizer(folder)
