#!/usr/bin/env python3
"""Makes the frames of the golden vectors v4-* and v6-* from their fields, independently of the implementations that
are tested against them: `python3 reference.py` rewrites `frame` in every file, `python3 reference.py --check` compares.

SipHash is that of base/wire/testdata/siphash.py, which is first compared with published vectors.
"""

import pathlib
import struct
import sys

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "base/wire/testdata"))
from siphash import compare_with_published, siphash


def direction_key(shared, sender, receiver, purposes):
    message = [b"hawser-shim" + bytes([purpose]) + sender + b"\0" + receiver for purpose in purposes]
    return b"".join(siphash(2, 4, shared, part) for part in message)


def sum16(data):
    data += b"\0" * (len(data) % 2)
    total = sum(word for (word,) in struct.iter_unpack(">H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def seal(field, shim, inner):
    """Returns the tag as defined in docs/design/wire.md."""
    header = 20 if inner[0] >> 4 == 4 else 40
    covered = inner[: header + 4].ljust(header + 4, b"\0")
    covered += b"\0" * (-len(covered) % 8)
    if field["whole"] == b"\1":
        digest_key = direction_key(field["key"], field["from"], field["to"], (2, 3))
        covered += siphash(1, 3, digest_key, inner)
    seal_key = direction_key(field["key"], field["from"], field["to"], (0, 1))
    return siphash(2, 4, seal_key, covered + shim[4:20] + shim[0:4])


def frame(field):
    inner = field["inner"]
    flags = 0
    if "key" in field:
        flags = 0x1 | 0x2 * field["key_slot"][0] | 0x4 * field["whole"][0]
    sent = field["sent_micros"]
    shim = bytes([0x20 | flags]) + field["path"] + field["paths"] + field["epoch"]
    shim += field["flow"] + sent[:2] + field["sequence"] + sent[2:]
    shim += seal(field, shim, inner) if "key" in field else bytes(8)
    length = struct.pack(">H", 8 + len(shim) + len(inner))
    udp = field["port"] * 2 + length
    traffic_class = inner[1] if inner[0] >> 4 == 4 else (inner[0] << 4 & 0xFF) | inner[1] >> 4
    ends = field["source"] + field["destination"]
    if len(field["source"]) == 4:
        total = struct.pack(">H", 28 + len(shim) + len(inner))
        before, after = bytes([0x45, traffic_class]) + total + bytes.fromhex("0000400040") + b"\x11", ends
        check = 0xFFFF - sum16(before + b"\0\0" + after)
        ip, ethertype = before + struct.pack(">H", check) + after, bytes.fromhex("0800")
        checksum = 0
    else:
        ip = struct.pack(">I", 6 << 28 | traffic_class << 20) + length + bytes([17, 64]) + ends
        ethertype = bytes.fromhex("86dd")
        pseudo = ends + struct.pack(">I", 8 + len(shim) + len(inner)) + bytes([0, 0, 0, 17])
        checksum = 0xFFFF - sum16(pseudo + udp + b"\0\0" + shim + inner) or 0xFFFF
    macs = field["destination_mac"] + field["source_mac"]
    return macs + ethertype + ip + udp + struct.pack(">H", checksum) + shim + inner


def main():
    compare_with_published()
    wrong = 0
    for path in sorted(pathlib.Path(__file__).parent.glob("v[46]-*.txt")):
        lines = path.read_text().splitlines()
        pairs = (line.split(" = ") for line in lines if line and not line.startswith("#"))
        field = {name: bytes.fromhex(value) for name, value in pairs}
        made = "frame = " + frame(field).hex()
        wrong += lines[-1] != made
        if "--check" not in sys.argv:
            path.write_text("\n".join(lines[:-1] + [made]) + "\n")
    if "--check" in sys.argv and wrong:
        sys.exit(f"{wrong} frames differ")


if __name__ == "__main__":
    main()
