"""All uses of private attributes of llama-cpp-python."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any


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


def adapters_of(llm: Any) -> tuple[tuple[int, float], ...]:
    """Return the adapters that a Llama was made with, as addresses and scales."""
    if not llm._lora_adapter:
        return ()
    return ((ctypes.cast(llm._lora_adapter, ctypes.c_void_p).value or 0, float(llm.lora_scale)),)


def registered_chat_handler(llm: Any) -> Any:
    """Return the handler made from the model's own chat template, or None."""
    return llm._chat_handlers.get(llm.chat_format)


def formatter_of(handler: Any) -> Any:
    """Return the formatter of which llama_cpp has made a chat handler; None if it is a handler of another kind."""
    return inspect.getclosurevars(handler).nonlocals.get("chat_formatter") if inspect.isfunction(handler) else None


def call_at_close(llm: Any, function: Callable[[], None]) -> None:
    """Let a Llama call a function when it is closed or collected, before anything of it is freed."""
    llm._stack.callback(function)
    llm._model._exit_stack.callback(function)  # because the model may be collected before the Llama


def values_of(struct: Any) -> dict[str, Any]:
    """Return the members of a ctypes struct of llama.cpp as a dict."""
    return {name: getattr(struct, name) for name, *_ in struct._fields_}
