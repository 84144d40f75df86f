# SPDX-License-Identifier: Apache-2.0 OR MIT
"""What other compressors make of the same variables: ratio, and speed on one core.

Reads FOLDER/CASE/manifest.json as bench-datasets writes them, compresses each large variable of one
checkpoint as a whole (all ranks, one after the other, with its shape), and writes a list as JSON. A
variable that is the same on all ranks is taken once. What comes back is compared with what went in.
"""

import argparse
import json
import time
from pathlib import Path

import blosc2
import fpzip
import numpy as np
import zfpy
import zstandard
from pcodec import ChunkConfig, standalone

TYPES = {"i8": "i1", "u8": "u1", "i32": "<i4", "i64": "<i8", "u64": "<u8", "bf16": "<u2",
         "f32": "<f4", "f64": "<f8"}
ROUNDS = 3


def variables(folder, place, small):
    """Name, element type and array of each large variable."""
    manifest = json.loads((folder / "manifest.json").read_text())
    found = [c for c in manifest["checkpoints"] if c["place"] == place and not c["close"]]
    content = np.fromfile(folder / found[0]["file"], dtype=np.uint8)
    by_name = {}
    for rank in found[0]["ranks"]:
        for stored in rank:
            by_name.setdefault(stored["name"], []).append(stored)
    for name, parts in by_name.items():
        if len({(part["offset"], part["length"]) for part in parts}) == 1:
            parts = parts[:1]
        if sum(part["length"] for part in parts) < small:
            continue
        element = parts[0]["element"]
        arrays = [content[p["offset"]:p["offset"] + p["length"]].view(TYPES[element])
                  .reshape(p["shape"] or [1]) for p in parts]
        if len({array.shape[1:] for array in arrays}) > 1:
            arrays = [array.reshape(-1) for array in arrays]
        yield name, element, np.ascontiguousarray(np.concatenate(arrays))


def dimensions(array, most):
    """The array with at most so many dimensions: outer ones are taken together."""
    if array.ndim <= most:
        return array
    return array.reshape((-1,) + array.shape[array.ndim - most + 1:])


def by_zstd(level):
    coder, decoder = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return (lambda array: coder.compress(array.tobytes()), lambda made, _: decoder.decompress(made))


def by_blosc(codec, level, filters):
    def encode(array):
        width = array.dtype.itemsize
        return blosc2.compress2(array, codec=codec, clevel=level, typesize=width, nthreads=1,
                                filters=[filters])
    return encode, lambda made, _: blosc2.decompress2(made, nthreads=1)


def by_pco(level):
    config = ChunkConfig(compression_level=level)
    return (lambda array: standalone.simple_compress(array.reshape(-1), config),
            lambda made, _: standalone.simple_decompress(made))


def by_fpzip():
    return (lambda array: fpzip.compress(dimensions(array, 4), order="C"),
            lambda made, _: fpzip.decompress(made, order="C"))


def by_zfp():
    return (lambda array: zfpy.compress_numpy(dimensions(array, 4)),
            lambda made, _: zfpy.decompress_numpy(made))


def methods(array, element, quick):
    """Name, how to encode and how to decode."""
    for level in [1, 3, 9] if quick else [1, 3, 6, 9, 12, 15, 19]:
        yield (f"zstd-{level}", *by_zstd(level))
    for name, filters in [("shuffle", blosc2.Filter.SHUFFLE), ("bitshuffle", blosc2.Filter.BITSHUFFLE)]:
        yield (f"blosc2-{name}-lz4-9", *by_blosc(blosc2.Codec.LZ4, 9, filters))
        for level in [3] if quick else [1, 5, 9]:
            yield (f"blosc2-{name}-zstd-{level}", *by_blosc(blosc2.Codec.ZSTD, level, filters))
    if element in ("f32", "f64"):
        yield ("fpzip", *by_fpzip())
    if element in ("f32", "f64", "i32", "i64"):
        yield ("zfp", *by_zfp())
    for level in [] if array.dtype.itemsize == 1 else [8] if quick else [8, 12]:
        yield (f"pco-{level}", *by_pco(level))


def measure(array, encode, decode):
    start = time.perf_counter()
    made = encode(array)
    encoding = time.perf_counter() - start
    decoding = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        back = decode(made, array)
        decoding = min(decoding, time.perf_counter() - start)
    raw = back if isinstance(back, (bytes, bytearray)) else np.ascontiguousarray(back).tobytes()
    if bytes(raw) != array.tobytes():
        raise ValueError("what came back differs")
    return {"ratio": array.nbytes / len(made), "encode_mb_s": array.nbytes / encoding / 1e6,
            "decode_gb_s": array.nbytes / decoding / 1e9}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--place", type=int, default=3, help="which checkpoint of the course")
    parser.add_argument("--small", type=int, default=65536, help="smaller variables are left out")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    rows = []
    for manifest in sorted(chosen.folder.glob("*/manifest.json")):
        case = manifest.parent.name
        for name, element, array in variables(manifest.parent, chosen.place, chosen.small):
            for method, encode, decode in methods(array, element, chosen.quick):
                row = {"case": case, "variable": name, "bytes": array.nbytes, "method": method}
                try:
                    rows.append(row | measure(array, encode, decode))
                except (ValueError, TypeError, RuntimeError) as error:
                    print(f"{case} {name} {method}: {error}")
    chosen.out.write_text(json.dumps(rows, indent=0) + "\n")


if __name__ == "__main__":
    main()
