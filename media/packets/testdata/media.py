#!/usr/bin/env python3
"""Makes the golden vectors media-* from their fields, independently of the implementations that are tested against them:
`python3 media.py` rewrites the last field of every file, and the plaintext of messages that have their fields;
`python3 media.py --check` compares.

AES is implemented from FIPS 197, GCM from NIST SP 800-38D and HKDF from RFC 5869, and first compared with published
vectors.
"""

import hashlib
import hmac
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "base/wire/testdata"))
from siphash import compare_with_published, siphash


def times_x(byte):
    return (byte << 1 ^ (0x1B if byte & 0x80 else 0)) & 0xFF


def make_sbox():
    """FIPS 197, section 5.1.1: the inverse in GF(2^8), then an affine transformation."""
    power, logarithm = [1], {1: 0}
    while len(power) < 255:
        power.append(times_x(power[-1]) ^ power[-1])
        logarithm[power[-1]] = len(power) - 1
    box = []
    for byte in range(256):
        inverse = power[-logarithm[byte] % 255] if byte else 0
        turned = [(inverse << turn | inverse >> 8 - turn) & 0xFF for turn in range(5)]
        box.append(turned[0] ^ turned[1] ^ turned[2] ^ turned[3] ^ turned[4] ^ 0x63)
    return box


SBOX = make_sbox()


def expand_key(key):
    words, constant = [key[at : at + 4] for at in range(0, 16, 4)], 1
    while len(words) < 44:
        word = words[-1]
        if len(words) % 4 == 0:
            word = bytes(SBOX[byte] for byte in word[1:] + word[:1])
            word, constant = bytes([word[0] ^ constant]) + word[1:], times_x(constant)
        words.append(bytes(a ^ b for a, b in zip(words[-4], word)))
    return [b"".join(words[at : at + 4]) for at in range(0, 44, 4)]


def aes(key, block):
    keys = expand_key(key)
    state = bytes(a ^ b for a, b in zip(block, keys[0]))
    for number in range(1, 11):
        state = bytes(SBOX[state[(at + 4 * (at % 4)) % 16]] for at in range(16))
        if number < 10:
            mixed = bytearray()
            for at in range(0, 16, 4):
                a = state[at : at + 4]
                for row in range(4):
                    b, c, d, e = (a[(row + turn) % 4] for turn in range(4))
                    mixed.append(times_x(b) ^ times_x(c) ^ c ^ d ^ e)
            state = bytes(mixed)
        state = bytes(a ^ b for a, b in zip(state, keys[number]))
    return state


def ghash(subkey, data):
    h, y = int.from_bytes(subkey, "big"), 0
    for at in range(0, len(data), 16):
        y ^= int.from_bytes(data[at : at + 16], "big")
        product, v = 0, h
        for bit in range(127, -1, -1):
            if y >> bit & 1:
                product ^= v
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
        y = product
    return y.to_bytes(16, "big")


def gcm(key, nonce, associated, plaintext):
    """Returns the ciphertext and the tag of AES-128-GCM."""

    def pad(data):
        return data + b"\0" * (-len(data) % 16)

    def block(number):
        return aes(key, nonce + struct.pack(">I", number))

    stream = b"".join(block(2 + at) for at in range((len(plaintext) + 15) // 16))
    ciphertext = bytes(a ^ b for a, b in zip(plaintext, stream))
    lengths = struct.pack(">QQ", 8 * len(associated), 8 * len(ciphertext))
    digest = ghash(aes(key, bytes(16)), pad(associated) + pad(ciphertext) + lengths)
    return ciphertext + bytes(a ^ b for a, b in zip(digest, block(1)))


def hkdf(secret, salt, info, length):
    """Returns bytes of HKDF-SHA256 (RFC 5869)."""
    key = hmac.digest(salt or bytes(32), secret, hashlib.sha256)
    output, last = b"", b""
    for number in range(1, 2 + length // 32):
        last = hmac.digest(key, last + info + bytes([number]), hashlib.sha256)
        output += last
    return output[:length]


def compare_more_with_published():
    # FIPS 197, appendix C.1; test case 4 of McGrew and Viega; RFC 5869, appendix A.1.
    key = bytes(range(16))
    assert aes(key, bytes.fromhex("00112233445566778899aabbccddeeff")).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308")
    plaintext = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    associated = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    sealed = gcm(key, bytes.fromhex("cafebabefacedbaddecaf888"), associated, plaintext)
    assert sealed[-16:].hex() == "5bc94fbc3221a5db94fae95ae7121a47"
    expected = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42).hex() == expected


def xor(one, other):
    return bytes(a ^ b for a, b in zip(one, other))


def access(field):
    return hkdf(field["secret"], b"", b"hawser access 1", 32)


def packet(field):
    head = b"\x01" + field["flags"] + field["priority"] + field["layer"] + field["alias"] + field["group"]
    head += field["object"] + field["index"] + field["count"] + field["deadline"] + field["epoch"]
    keys = hkdf(field["secret"], field["incarnation"], b"hawser media 1" + field["epoch"] + field["alias"], 28)
    nonce = field["group"] + field["object"] + field["layer"] + b"\0" + field["index"]
    sealed = gcm(keys[:16], xor(keys[16:], nonce), head, field["payload"])
    hop_key = hkdf(access(field), field["hop_salt"], b"hawser hop 1" + field["hop"], 16)
    clear = head + field["hop"]
    return {"datagram": clear + siphash(2, 4, hop_key, clear) + sealed}


def hello(field):
    secret = access(field)
    covered = b"\x41\x01\0\0" + hkdf(secret, b"", b"hawser broadcast 1", 16)
    covered += field["viewer_random"] + field["cookie"]
    mac = hmac.digest(hkdf(secret, b"", b"hawser hello 1", 32), covered, hashlib.sha256)[:16]
    return {"datagram": covered + mac}


def status(field):
    clock = field["sent_ns"] + field["echo_ns"] + field["held_us"] + field["publisher_ahead_ns"]
    counts = bytes([len(field["relays"]) // 8, len(field["epochs"]) // 6])
    state = field["hop"] + field["selection"] + field["report_interval_ms"] + counts
    return clock + state + field["relays"] + field["epochs"]


def plaintext(field):
    [kind] = field["kind"]
    if kind == 3:
        return status(field) + field["hop_salt"] + announcement(field)["datagram"]
    if kind == 4:
        return field["selection"] + bytes([len(field["tracks"]) // 5]) + field["tracks"]
    if kind == 6:
        return status(field)
    return field["plaintext"]


def message(field):
    randoms = field["viewer_random"] + field["sender_random"]
    keys = hkdf(access(field), randoms, b"hawser session 1", 56)
    [kind] = field["kind"]
    keys = keys[28:] if kind in (3, 6) else keys[:28]
    clear = b"\x41" + field["kind"] + b"\0\0" + field["session"] + field["number"]
    clear += randoms if kind == 3 else b""
    nonce = xor(keys[16:], b"\0\0\0\0" + field["number"])
    opened = plaintext(field)
    return {"plaintext": opened, "datagram": clear + gcm(keys[:16], nonce, clear, opened)}


def announcement(field):
    key = hkdf(field["secret"], b"", b"hawser announcement 1", 32)
    return {"datagram": field["covered"] + hmac.digest(key, field["covered"], hashlib.sha256)[:16]}


def main():
    compare_with_published()
    compare_more_with_published()
    makers = {"packet": packet, "hello": hello, "message": message, "announcement": announcement}
    wrong = 0
    for path in sorted(pathlib.Path(__file__).parent.glob("media-*.txt")):
        lines = path.read_text().splitlines()
        pairs = (line.split(" = ") for line in lines if line and not line.startswith("#"))
        field = {name: bytes.fromhex(value) for name, value in pairs}
        made = makers[path.stem.split("-")[1]](field)
        names = (line.split(" = ")[0] for line in lines)
        rewritten = [f"{name} = {made[name].hex()}" if name in made else line for name, line in zip(names, lines)]
        wrong += rewritten != lines
        if "--check" not in sys.argv:
            path.write_text("\n".join(rewritten) + "\n")
    if "--check" in sys.argv and wrong:
        sys.exit(f"{wrong} vectors differ")


if __name__ == "__main__":
    main()
