"""Machine code of the loops in `roster.wire.columns`: compiled once by numba, kept on disk, loaded by llvmlite.

In each worker process that Spark starts, importing numba takes 0.4 to 0.7 s of CPU, and loading a function from numba's
own cache 0.4 s. The loops take plain pointers and call nothing, so llvmlite can link their object file without numba,
in a tenth of the time. numba is imported only without an object file for the version of Roster, numba and llvmlite
and the type of processor; compiling takes 5 s of CPU. The driver compiles, and sends the code to executors.
"""

import ctypes
import hashlib
import logging
import os
import pkgutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import llvmlite.binding as llvm
import pyarrow as pa

from roster.wire.columns import (
    avro_encode_layout,
    avro_layout,
    decode_layout,
    encode_layout,
    hash_layout,
    json_layout,
    offsets_layout,
)

log = logging.getLogger(__name__)

_DIGEST = hashlib.sha256().digest_size
_PREFIX = "roster_"
_NUMBER = "-"
"""Type of a parameter that is a number, in a signature; the others are arrays."""


class Loops(NamedTuple):
    """A module of `roster.wire.columns` whose loops are compiled together, the modules they are made of, parameters."""

    module: str
    made_of: tuple[str, ...]
    signatures: Mapping[str, str]

    def __hash__(self) -> int:
        return hash(self.module)


_READS = ("checksum_kernel", "decode_kernel", "decode_layout", "text_kernel")
_WRITES = (*_READS, "encode_kernel", "encode_layout", "murmur2", "partition_kernel")

READ = Loops("decode_kernel", _READS, decode_layout.SIGNATURES)
"""`scan` and `fill`: from record batches to columns; `seal` and `unsound`: checksums of entries of state; `join`:
texts."""
WRITE = Loops("encode_kernel", _WRITES, encode_layout.SIGNATURES)
"""`place` and `encode`: from columns to records."""
OFFSETS = Loops("offsets_kernel", (*_READS, "offsets_kernel", "offsets_layout"), offsets_layout.SIGNATURES)
"""`offset_commits`: from records of `__consumer_offsets` to columns; `commits_to_keep`: those that a history needs."""
AVRO = Loops("avro_kernel", (*OFFSETS.made_of, "avro_kernel", "avro_layout"), avro_layout.SIGNATURES)
"""`avro`: from Avro values to columns."""
AVRO_ENCODE = Loops(
    "avro_encode_kernel", (*_WRITES, "avro_encode_kernel", "avro_encode_layout"), avro_encode_layout.SIGNATURES
)
"""`avro_encode`: from columns to Avro values."""
JSON = Loops("json_kernel", (*OFFSETS.made_of, "json_kernel", "json_layout"), json_layout.SIGNATURES)
"""`json_cells` and `json_texts`: from JSON objects to columns."""
HASH = Loops("hash_kernel", ("checksum_kernel", "hash_kernel", "hash_layout", "text_kernel"), hash_layout.SIGNATURES)
"""`hash_get` and others: the index and the entries of a store of state."""
ALL = (READ, WRITE, OFFSETS, AVRO, AVRO_ENCODE, JSON, HASH)


class NativeKernel:
    """The compiled functions of `Loops`, called with the same arrays and numbers."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., int]:
            """Return a function."""

    def __init__(self, object_code: bytes, loops: Loops = READ) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
        self._engine.finalize_object()
        for name, parameters in loops.signatures.items():
            setattr(self, name, self._function(name, parameters))

    def _function(self, name: str, parameters: str) -> Callable[..., int]:
        """Wrap a function in numba's calling convention, which returns result and error through pointers."""
        arrays = [kind != _NUMBER for kind in parameters.split()]
        types = [ctypes.c_void_p if is_array else ctypes.c_int64 for is_array in arrays]
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *types)
        function = prototype(self._engine.get_function_address(_PREFIX + name))

        def call(*arguments: Any) -> int:
            result, error = ctypes.c_int64(), ctypes.c_void_p()
            flat = [
                pa.py_buffer(argument).address if is_array else argument
                for is_array, argument in zip(arrays, arguments, strict=True)
            ]
            status = function(ctypes.addressof(result), ctypes.addressof(error), *flat)
            if status != 0:
                raise RuntimeError(f"{name}: status {status}")
            return result.value

        return call


class Compiled(NamedTuple):
    """Object code, and the digest of its sources, compiler and processor."""

    digest: str
    object_code: bytes


@cache
def compiled(loops: Loops = READ) -> Compiled:
    """Return the object code for this process, from the cache on disk, or compiled now (5 s of CPU)."""
    digest = _digest(loops)
    folder = cache_folder()
    path = folder / f"kernel-{digest}.o" if folder is not None else None
    object_code = _read(path) if path is not None else None
    if object_code is None:
        log.info("compiling the loops of %s, kept in %s", loops.module, path)
        object_code = build(loops)
        if path is not None:
            _write(path, object_code)
    return Compiled(digest, object_code)


@cache
def kernel(shipped: Compiled | None = None, loops: Loops = READ) -> NativeKernel:
    """Return the compiled functions, from `shipped` (compiled by another process) if it fits this processor."""
    fits = shipped is not None and shipped.digest == _digest(loops)
    return NativeKernel(shipped.object_code if shipped is not None and fits else compiled(loops).object_code, loops)


def build(loops: Loops = READ) -> bytes:
    """Compile to an object file for this type of processor."""
    from numba import njit, types  # noqa: PLC0415 - see the module's docstring

    module_of_loops = import_module(f"roster.wire.columns.{loops.module}")
    pointer: Any = types.CPointer
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("")
    for name, parameters in loops.signatures.items():
        kinds = [types.int64 if kind == _NUMBER else pointer(getattr(types, kind)) for kind in parameters.split()]
        compiled = njit(types.int64(*kinds), **module_of_loops.OPTIONS)(getattr(module_of_loops, name).py_func)
        (text,) = compiled.inspect_llvm().values()
        (symbol,) = [key for key in _defined(text) if f"{len(name)}{name}B" in key]
        module.link_in(llvm.parse_assembly(text.replace(symbol, _PREFIX + name)))
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features(), opt=3, reloc="pic", codemodel="default"
    )
    return bytes(machine.emit_object(module))


def _defined(text: str) -> list[str]:
    """Return the names of the functions that a module in LLVM's language defines."""
    return [function.name for function in llvm.parse_assembly(text).functions if not function.is_declaration]


def _features() -> str:
    return str(llvm.get_host_cpu_features().flatten())


@cache
def _digest(loops: Loops = READ) -> str:
    """Return a digest of sources, compiler and processor."""
    sources = [*(("roster.wire.columns", f"{name}.py") for name in loops.made_of), (__package__, "native.py")]
    # Through the import system, as the package may lie in a zip file (--py-files).
    made_from = [pkgutil.get_data(*source) or b"" for source in sources]
    made_for = [loops.module, version("numba"), version("llvmlite"), llvm.get_process_triple()]
    made_for += [llvm.get_host_cpu_name(), _features()]
    return hashlib.sha256(b"\0".join([*made_from, *(text.encode() for text in made_for)])).hexdigest()[:32]


def cache_folder() -> Path | None:
    """Return the folder for what is made once for this machine; None for a user without a home directory."""
    configured = os.environ.get("XDG_CACHE_HOME")
    try:
        caches = Path(configured) if configured else Path.home() / ".cache"
    except RuntimeError:
        return None
    return caches / "roster"


def _read(path: Path) -> bytes | None:
    """Return the object code in `path`; None if there is none or it is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, object_code = content[:_DIGEST], content[_DIGEST:]
    return object_code if hashlib.sha256(object_code).digest() == digest else None


def _write(path: Path, object_code: bytes) -> None:
    """Replace `path` atomically. If the folder cannot be written, each process compiles."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(object_code).digest() + object_code)
        Path(file.name).replace(path)
