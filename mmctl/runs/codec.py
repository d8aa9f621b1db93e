"""Nested Python values as JSON and named tensors, exactly and without pickle.

What JSON cannot say is an object with one key that starts with "$":
  {"$float": "nan"}  {"$bytes": base64}  {"$tuple": [...]}  {"$dict": [[key, value], ...]} (keys that are no strings)
  {"$array": [dtype, shape, base64]}  {"$tensor": [dtype, shape, base64]}  {"$ref": name} (a tensor stored apart)
Decoding builds these types and nothing else, so a hostile file can at worst be refused.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmctl.errors import MmctlError


def encode(value: Any, tensors: dict[str, Any] | None = None, path: str = "") -> Any:
    """JSON-ready form of `value`: None, bool, int, float, str, bytes, list, tuple, dict, numpy array, torch tensor.

    With `tensors`, every torch tensor goes there under its dotted path and leaves a reference; without, it is written
    inline (random generator states and the like). Anything else is a TypeError that names where it stands.
    """
    if isinstance(value, np.generic):  # before float and int: numpy's float64 is a float
        value = np.asarray(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, bytes | bytearray):
        return {"$bytes": _text(bytes(value))}
    if isinstance(value, list | tuple):
        items = [encode(item, tensors, f"{path}.{index}" if path else str(index)) for index, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        plain = all(isinstance(key, str) for key in value) and not any(key.startswith("$") for key in value)
        pairs = [(key, encode(item, tensors, f"{path}.{key}" if path else str(key))) for key, item in value.items()]
        return dict(pairs) if plain else {"$dict": [[encode(key), item] for key, item in pairs]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return {"$array": [value.dtype.str, list(value.shape), _text(value.tobytes())]}
    if _is_tensor(value):
        if tensors is None:
            return {"$tensor": _tensor_out(value)}
        name = path or "value"
        while name in tensors:  # {"a.b": t, "a": {"b": t}} would collide
            name += "'"
        tensors[name] = value
        return {"$ref": name}
    raise TypeError(f"{path or 'value'}: cannot be saved without pickle: {type(value).__name__}")


def decode(value: Any, tensors: Mapping[str, Any] | None = None) -> Any:
    """The inverse of `encode`. MmctlError if the form is not one `encode` makes."""
    try:
        return _decode(value, tensors)
    except RecursionError:
        raise MmctlError("damaged value: nested too deeply") from None


def _decode(value: Any, tensors: Mapping[str, Any] | None) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (tag, content), *_ = value.items()
        if tag.startswith("$"):
            try:
                return _tagged(tag, content, tensors)
            except RecursionError:
                raise
            except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError) as error:
                raise MmctlError(f"damaged value {tag}: {' '.join(str(error).split())[:200]}") from None
    return {key: _decode(item, tensors) for key, item in value.items()}


def _tagged(tag: str, content: Any, tensors: Mapping[str, Any] | None) -> Any:
    if tag == "$float":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
    if tag == "$bytes":
        return base64.b64decode(content, validate=True)
    if tag == "$tuple":
        return tuple(_decode(item, tensors) for item in content)
    if tag == "$dict":
        return {_decode(key, None): _decode(item, tensors) for key, item in content}
    if tag == "$array":
        dtype, shape, data = content
        array = np.frombuffer(base64.b64decode(data, validate=True), np.dtype(dtype)).reshape(shape).copy()
        return array[()] if array.ndim == 0 else array
    if tag == "$tensor":
        return _tensor_in(*content)
    if tag == "$ref" and tensors is not None:
        return tensors[content]
    raise ValueError("unknown")


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "torch" and hasattr(value, "untyped_storage")


def _tensor_out(tensor: Any) -> list[Any]:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0)
    return [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), _text(flat.cpu().numpy().tobytes())]


def _tensor_in(dtype: str, shape: list[int], data: str) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"no dtype {dtype!r}")
    raw = bytearray(base64.b64decode(data, validate=True))
    if not raw and 0 not in shape:  # else a few letters could ask for all of the memory
        raise ValueError(f"no data for the shape {shape}")
    return torch.frombuffer(raw, dtype=torch.uint8).view(kind).reshape(shape) if raw else torch.empty(shape, dtype=kind)
