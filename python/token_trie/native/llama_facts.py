"""All uses of private attributes of llama-cpp-python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

COMPLETE = "_create_completion"
"""The method that `create_completion` and `create_chat_completion` call."""
INIT_SAMPLER = "_init_sampler"
"""The method that makes the sampler chain of a call."""


def library_of(package: Any) -> tuple[Any, str]:
    """Return the libllama of a llama_cpp, as ctypes has loaded it, and its path."""
    library = package.llama_cpp._lib
    return library, library._name


def model_of(llm: Any) -> Any:
    """Return the wrapped model; its `model` is None once it is closed."""
    return llm._model


def wrapped_model(path: str, params: Any) -> Any:
    """Load a model as a Llama does, without a Llama; ValueError if it cannot be read."""
    from llama_cpp._internals import LlamaModel

    return LlamaModel(path_model=path, params=params, verbose=False)


def context_of(llm: Any) -> Any:
    """Return the wrapped context; its `ctx` is None once it is closed."""
    return llm._ctx


def adapter_of(llm: Any) -> Any:
    """Return the LoRA adapter, or None."""
    return llm._lora_adapter


def registered_chat_handler(llm: Any) -> Any:
    """Return the handler made from the model's own chat template, or None."""
    return llm._chat_handlers.get(llm.chat_format)


def exit_stacks(llm: Any) -> tuple[Any, Any]:
    """Return the exit stacks of the model and of the Llama."""
    return llm._model._exit_stack, llm._stack


def set_exit_stack(llm: Any, stack: ExitStack) -> None:
    """Replace the stack that runs when the Llama is closed."""
    llm._stack = stack


def n_callbacks(stack: Any) -> int:
    """Count the callbacks of a stack."""
    return len(stack._exit_callbacks)


def values_of(struct: Any) -> dict[str, Any]:
    """Return the members of a ctypes struct of llama.cpp as a dict."""
    return {name: getattr(struct, name) for name, *_ in struct._fields_}


def restorer(llm: Any, names: Iterable[str]) -> Callable[[], None]:
    """Return a function that restores overridden methods of a Llama, and its sampler chain."""
    all_names = tuple(names)
    previous = {name: llm.__dict__[name] for name in all_names if name in llm.__dict__}
    sampler = llm._sampler

    def restore() -> None:
        for name in all_names:
            llm.__dict__.pop(name, None)
        llm.__dict__.update(previous)
        llm._sampler = sampler

    return restore
