"""What llama-cpp-python's `Llama` keeps to itself, and this package has to know: all of it is here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

COMPLETE = "_create_completion"
"""The method behind `create_completion`, which `create_chat_completion` calls,"""
INIT_SAMPLER = "_init_sampler"
"""and the one that makes a call's chain of samplers."""


def model_of(llm: Any) -> Any:
    """Return the wrapped model; its `model` is None once it is closed."""
    return llm._model


def wrapped_model(path: str, params: Any) -> Any:
    """Load a model as a Llama wraps it, without one; ValueError if it cannot be read."""
    from llama_cpp._internals import LlamaModel

    return LlamaModel(path_model=path, params=params, verbose=False)


def context_of(llm: Any) -> Any:
    """Return the wrapped context; its `ctx` is None once it is closed."""
    return llm._ctx


def adapter_of(llm: Any) -> Any:
    """Return the LoRA adapter, or None."""
    return llm._lora_adapter


def registered_chat_handler(llm: Any) -> Any:
    """Return the handler that was made of the model's own chat template for its format, or None."""
    return llm._chat_handlers.get(llm.chat_format)


def exit_stacks(llm: Any) -> tuple[Any, Any]:
    """Return what runs when the model is closed, and when the Llama is."""
    return llm._model._exit_stack, llm._stack


def set_exit_stack(llm: Any, stack: ExitStack) -> None:
    """Put another stack in the place of what runs when the Llama is closed."""
    llm._stack = stack


def n_callbacks(stack: Any) -> int:
    """Count what a stack is going to run."""
    return len(stack._exit_callbacks)


def values_of(struct: Any) -> dict[str, Any]:
    """Return the values of a struct of llama.cpp, by their names."""
    return {name: getattr(struct, name) for name, *_ in struct._fields_}


def restorer(llm: Any, names: Iterable[str]) -> Callable[[], None]:
    """Return what puts methods of one Llama back, and the chain that was its sampler."""
    all_names = tuple(names)
    previous = {name: llm.__dict__[name] for name in all_names if name in llm.__dict__}
    sampler = llm._sampler

    def restore() -> None:
        for name in all_names:
            llm.__dict__.pop(name, None)
        llm.__dict__.update(previous)
        llm._sampler = sampler

    return restore
