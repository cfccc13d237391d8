"""`TokenTrieLM`: a GGUF file as a model of the harness."""

from __future__ import annotations

import os
from typing import Any

from tqdm import tqdm

from token_trie.engines.lm_eval.scoring import Continuation, GenerationRequest, generate_texts, score_continuations
from token_trie.errors import ArgumentError
from token_trie.llama.query import Sampling
from token_trie.native.core import Llama, llama_cpp

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import model_registry
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise ImportError(
        f"token_trie.engines.lm_eval needs lm-evaluation-harness: pip install 'token-trie[lm-eval]' ({error})"
    ) from error

_TEMPLATE = "tokenizer.chat_template"
_SAMPLING_OPTIONS = {"typical_p"}  # ignored in greedy generation


class TokenTrieLM(TemplateLM):  # type: ignore[misc]
    """A GGUF model for lm-evaluation-harness.

    The continuations of one context are scored as one tree, and all contexts in one batch, as in `choose_many`. Texts
    are tokenized and truncated to the context as by the harness's ``hf`` model.

    Parameters
    ----------
    path : str, path or llama_cpp.Llama
        The GGUF file, or a loaded model, which is not closed.
    n_ctx : int
        Maximum number of tokens of a context with its continuation.
    max_gen_toks : int
        Maximum number of tokens to generate, for tasks that set none.
    n_parallel : int
        Number of texts of full length that are generated at once; their context has n_parallel times n_ctx tokens.
    seed : int
        The seed of each sampled text.
    batch_size, max_batch_size, device
        Ignored; the harness passes them to all models. To use a device, give ``n_gpu_layers``.
    **options
        Options of `llama_cpp.Llama`, such as ``n_gpu_layers``, ``n_threads``, ``flash_attn``.

    Raises
    ------
    ArgumentError
        The file cannot be read as a model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Llama,
        n_ctx: int = 2048,
        max_gen_toks: int = 256,
        n_parallel: int = 4,
        seed: int = 0,
        batch_size: object = None,
        max_batch_size: object = None,
        device: object = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if isinstance(path, llama_cpp.Llama):
            self._llm: Llama = path
        else:
            try:
                self._llm = llama_cpp.Llama(os.fspath(path), n_ctx=n_ctx, **{"verbose": False, **options})
            except (TypeError, ValueError) as error:
                raise ArgumentError(f"path: {error}") from error
        self._name = str(os.path.basename(self._llm.model_path))
        self.max_length = n_ctx
        self.max_gen_toks = max_gen_toks
        self._n_parallel = n_parallel
        self._seed = seed

    # Attributes that the harness reads

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return int(self._llm.token_eos())

    @property
    def prefix_token_id(self) -> int:
        """The token that replaces an empty context."""
        begin = int(self._llm.token_bos())
        return begin if begin >= 0 else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches answers."""
        return self._name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the file's chat template, the only one."""
        return self._llm.metadata.get(_TEMPLATE) if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the prompt that the file's template makes of messages.

        Without generation prompt, the prompt ends with the last message, for the model to continue.
        """
        template = self._llm.metadata.get(_TEMPLATE)
        if template is None:
            raise ArgumentError(f"{self._name}: it has no chat template")
        formatter = llama_cpp.llama_chat_format.Jinja2ChatFormatter(
            template,
            eos_token=self._text_of(self._llm.token_eos()),
            bos_token=self._text_of(self._llm.token_bos()),
            add_generation_prompt=add_generation_prompt,
        )
        messages: Any = chat_history
        prompt: str = formatter(messages=messages).prompt
        if add_generation_prompt:
            return prompt
        last = chat_history[-1]["content"].strip()
        return prompt[: prompt.rindex(last) + len(last)]

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Return the tokens of a text, by default after the BOS token, unless the text begins with it."""
        if add_special_tokens is None:
            begin = self._text_of(self._llm.token_bos())
            add_special_tokens = not (begin and string.startswith(begin))
        tokens: list[int] = self._llm.tokenize(string.encode(), add_bos=add_special_tokens, special=True)
        return tokens

    # Methods that the harness calls

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        pairs = []
        for texts, context, continuation in requests:
            if not continuation:
                raise ArgumentError(f"loglikelihood: {texts[1]!r} has no token of its own behind {texts[0][-20:]!r}")
            whole = (context + continuation)[-(self.max_length + 1) :]
            pairs.append((whole[: -len(continuation)], continuation))
        answers = [(logprob, is_greedy) for logprob, is_greedy in self._score(pairs, True, disable_tqdm)]
        for (texts, _, _), answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, scored in windows as long as the context."""
        windows = []
        of_request: list[int] = []
        for i, request in enumerate(requests):
            of_text = get_rolling_token_windows(
                self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, context_len=1
            )
            windows += [make_disjoint_window(window) for window in of_text]
            of_request += [i] * (len(windows) - len(of_request))
        sums = [0.0] * len(requests)
        for i, window in zip(of_request, self._score(windows, False, disable_tqdm), strict=True):
            sums[i] += window.logprob
        for request, logprob in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, logprob)
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text that the model generates after each context, up to a stop string."""
        texts = [""] * len(requests)
        prompts = [self._request(*request.args) for request in requests]
        n_ctx = self._n_parallel * self.max_length
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running generate_until requests") as bar:

            def done(i: int, text: str) -> None:
                texts[i] = text
                self.cache_hook.add_partial("generate_until", requests[i].args, text)
                bar.update(1)

            generate_texts(self._llm, prompts, n_ctx=n_ctx, seed=self._seed, done=done)
        return texts

    def _score(self, pairs: list[Any], greedy: bool, disable_tqdm: bool) -> list[Continuation]:
        with tqdm(total=len(pairs), disable=disable_tqdm, desc="Running loglikelihood requests") as bar:
            # The last token of a continuation has a cell in the KV cache, though it is not evaluated.
            return score_continuations(self._llm, pairs, greedy=greedy, n_ctx=self.max_length + 1, advance=bar.update)

    def _request(self, context: str, options: dict[str, Any]) -> GenerationRequest:
        options = normalize_gen_kwargs(options, self.max_gen_toks)
        stops = handle_stop_sequences(options.pop("until"), eos=self._text_of(self._llm.token_eos()))
        n = options.pop("max_gen_toks")
        if n >= self.max_length:
            raise ArgumentError(f"max_gen_toks: {n} tokens leave no room for a context of {self.max_length}")
        is_drawn, temperature = options.pop("do_sample"), options.pop("temperature", 0.0)
        drawn = {name: options.pop(name) for name in ("top_p", "top_k", "min_p") if name in options}
        left = sorted(set(options) - (set() if is_drawn else _SAMPLING_OPTIONS))
        if left:
            raise ArgumentError(f"generate_until: {left[0]} is not supported")
        tokens = self.tok_encode(context)[-(self.max_length - n) :]
        sampling = Sampling(temperature=float(temperature), **drawn) if is_drawn else Sampling()
        return GenerationRequest(tokens, n, [text for text in stops if text], sampling)

    def _text_of(self, token: int) -> str:
        return "" if token < 0 else str(self._llm.detokenize([token], special=True).decode(errors="replace"))


def register() -> None:
    """Register the model in the harness as token_trie; a second call does nothing."""
    if "token_trie" not in model_registry:
        model_registry.register("token_trie", target=TokenTrieLM)
